// Commands of the system, in the guest.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

/** The emulated processor has been seen to end a program by a signal for no reason of its own. */
const ATTEMPTS = 12;
/** At once it may end so again. */
const PAUSE_MS = 250;

/** Runs a command that may be repeated, and expects it to succeed. */
export function command(program: string, ...words: string[]): void {
  for (let attempt = 1; ; attempt++) {
    const { status, signal, error, stderr } = spawnSync(program, words, { encoding: 'utf8' });
    if (status === null && attempt < ATTEMPTS) {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE_MS * attempt);
      continue;
    }
    const how = error?.message ?? (signal === null ? `exit code ${status}` : `ended by ${signal}`);
    assert.equal(status, 0, `${program} ${words.join(' ')}, attempt ${attempt}: ${how}: ${stderr}`);
    return;
  }
}

const IFF_UP = 1;

/**
 * Takes a network device up or down. No process is started for it: one that a signal ends would leave the device down, and every
 * later test would fail.
 */
export function setLink(device: string, state: 'up' | 'down'): void {
  const path = `/sys/class/net/${device}/flags`;
  const flags = Number(readFileSync(path, 'utf8'));
  writeFileSync(path, `0x${(state === 'up' ? flags | IFF_UP : flags & ~IFF_UP).toString(16)}`);
}
