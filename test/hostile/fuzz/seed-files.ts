// Inputs that once reached code which no other seed reached; they lie in the repository, one file each.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Decoder } from './decoder.ts';

/** Compiled tests run from build/test/hostile/fuzz. */
const root = fileURLToPath(new URL('../../../../test/hostile/seeds/', import.meta.url));

/** Seeds of the decoder itself, then those of its folder in the order of their names. */
export function seedsOf(decoder: Decoder): readonly Uint8Array[] {
  const folder = root + decoder.name;
  const names = existsSync(folder) ? readdirSync(folder).toSorted() : [];
  return [...decoder.seeds(), ...names.map((name) => new Uint8Array(readFileSync(`${folder}/${name}`)))];
}

export function keepSeed(decoder: Decoder, input: Uint8Array): string {
  const folder = root + decoder.name;
  mkdirSync(folder, { recursive: true });
  const path = `${folder}/${createHash('sha256').update(input).digest('hex').slice(0, 12)}.bin`;
  writeFileSync(path, input);
  return path;
}
