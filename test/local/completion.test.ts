// The scripts of weftline completion, asked as the shells ask them.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from './support/requirements.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const work = mkdtempSync(join(tmpdir(), 'weftline-completion-'));
after(() => rmSync(work, { recursive: true }));

const cases: readonly (readonly [line: string, expected: readonly string[], missing: readonly string[]])[] = [
  ['weftline ', ['run', 'moe', 'bench', '2proc', 'completion'], ['ep', '--ranks']],
  ['weftline mo', ['moe'], ['run']],
  ['weftline bench ', ['ep', 'transport', 'unpack'], ['moe']],
  ['weftline moe --dis', ['--dispatcher'], ['--dtype']],
  ['weftline bench ep --', ['--tokens', '--json'], ['--dispatcher']],
  ['weftline moe --dispatcher ', ['buffer', 'all2all'], ['bf16']],
  ['weftline moe --dtype f', ['fp8'], ['bf16']],
  // A value that is named as a command.
  ['weftline moe --out bench --dt', ['--dtype'], []],
];

function script(shell: string): string {
  const { status, stdout, stderr } = spawnSync(process.execPath, [main, 'completion', shell], { encoding: 'utf8' });
  assert.equal(status, 0, stderr);
  const path = join(work, shell);
  writeFileSync(path, stdout);
  return path;
}

/** What a shell's program prints, one word a line. */
function ask(shell: string, program: string, ...args: readonly string[]): string[] {
  const { status, stdout, stderr } = spawnSync(shell, [...(shell === 'zsh' ? ['-f'] : []), '-c', program, ...args], {
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
  assert.equal(stderr, '');
  return stdout.split('\n').filter((line) => line !== '');
}

/** `reply` gives the candidates for a line, those that do not begin with its last word among them or not. */
function checkCases(reply: (line: string) => readonly string[]): void {
  for (const [line, expected, missing] of cases) {
    const last = line.split(' ').at(-1)!;
    const words = reply(line).filter((word) => word.startsWith(last));
    for (const word of expected) assert.ok(words.includes(word), `${word} for "${line}", got ${words.join(' ')}`);
    for (const word of missing) assert.ok(!words.includes(word), `${word} for "${line}"`);
  }
}

function lackOf(shell: string): string | undefined {
  return spawnSync(shell, ['-c', 'true']).status === 0 ? undefined : `there is no ${shell}`;
}

test('bash completes commands, flags and choices', { skip: lackOf('bash') ?? false }, () => {
  const path = script('bash');
  checkCases((line) =>
    ask(
      'bash',
      'source "$0"; read -ra COMP_WORDS <<< "$1"; [[ $1 == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _weftline; printf "%s\\n" "${COMPREPLY[@]}"',
      path,
      line,
    ),
  );
});

test('zsh completes commands, flags and choices', { skip: skipWithout('shells', lackOf('zsh')) }, () => {
  const path = script('zsh');
  // What zsh's completion system would show.
  const stubs =
    'compdef() { }; _files() { }; compadd() { shift; print -l -- "$@" }; _describe() { local list="${@[-1]}"; print -l -- "${(@)${(P)list}%%:*}" };';
  checkCases((line) =>
    ask('zsh', `${stubs} source "$0"; words=("\${(@s: :)1}"); CURRENT=\${#words}; _weftline`, path, line),
  );
});

test('fish completes commands, flags and choices', { skip: skipWithout('shells', lackOf('fish')) }, () => {
  const path = script('fish');
  checkCases((line) =>
    ask('fish', 'source $argv[1]; complete -C "$argv[2]"', path, line).map((text) => text.split('\t')[0]!),
  );
});
