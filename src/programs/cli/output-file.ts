// Files that a command writes at its end, checked before it begins.
import { accessSync, constants, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { WeftlineError } from '../../core/errors.ts';

/** Fails with WL_FILE. */
export function requireWritableFolder(file: string): void {
  const folder = dirname(file);
  try {
    accessSync(folder, constants.W_OK);
  } catch (cause) {
    throw new WeftlineError('WL_FILE', `Cannot write ${file}: the folder ${folder} is missing or not writable`, {
      details: { file, folder },
      cause,
    });
  }
}

/** Writes a result document, if a file was asked for. */
export function writeJson(file: string | undefined, document: unknown): void {
  if (file !== undefined) writeFileSync(file, `${JSON.stringify(document, sixDigits, 2)}\n`);
}

/** More digits than these are noise. */
function sixDigits(_key: string, value: unknown): unknown {
  return typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value;
}
