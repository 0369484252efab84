// Files that a command writes at its end, checked before it begins.
import { accessSync, constants } from 'node:fs';
import { dirname } from 'node:path';
import { WeftlineError } from '../core/errors.ts';

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
