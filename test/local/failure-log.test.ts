// Another user of the host can neither change what a job says of its failure nor make it write to other files.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { runRanks } from './support/run-ranks.js';
import { skipWithout } from './support/requirements.js';

const script = new URL('./support/failing-rank.js', import.meta.url);
const OTHER_USER = ['--reuid', '65534', '--regid', '65534', '--clear-groups'];

/** Runs a shell script as another user; returns what it printed. */
function asOther(shell: string, ...args: readonly string[]): string {
  const command = [...OTHER_USER, '/bin/sh', '-c', shell, 'sh', ...args];
  return spawnSync('setpriv', command, { encoding: 'utf8', cwd: '/', timeout: 600_000 }).stdout;
}

function whyNoOtherUser(): string | undefined {
  if (process.geteuid?.() !== 0) return 'needs root and setpriv, to run a process as another user';
  return asOther('echo ready') === 'ready\n' ? undefined : 'setpriv cannot run a shell as another user';
}

/** Tries the log itself, then the names beside it that can be guessed from what /dev/shm shows. */
const attack = `
umask 0
for name in /dev/shm/*; do
  case $name in "\${1%/*}"|"$1") printf 'seen ' ;; esac
done
prefix=$(expr "$1" : '\\(/dev/shm/weftline-[0-9a-f]*\\)')
for path in "$1" "$prefix-failures"; do
  case $2 in
    link) ln -s "$3" "$path" ;;
    pipe) mkfifo -m 666 "$path" ;;
    forged) echo '{"rank":0,"time":1,"because":[],"error":{"code":"WL_CUDA","message":"forged"}}' >> "$path" ;;
  esac 2> /dev/null && printf '%s ' "\${path#"$prefix"}"
done
ls "\${1%/*}" > /dev/null 2>&1 && [ "\${1%/*}" != /dev/shm ] && printf 'listed'
`;

const skip = skipWithout('other-user', whyNoOtherUser());

for (const way of ['link', 'forged', 'pipe']) {
  test(
    `another user who can guess names has no say in why a job failed: ${way}`,
    { skip, timeout: 600_000 },
    async () => {
      const folder = mkdtempSync(join(tmpdir(), 'weftline-test-'));
      const victim = join(folder, 'victim');
      writeFileSync(victim, 'kept');
      let log = '';
      try {
        const { exitCode, notices, transcript } = await runRanks(1, script, {
          args: ['signalled'],
          timeoutMs: 120_000,
          onLine: ({ stream, text }) => {
            if (stream !== 'stdout') return;
            const told = JSON.parse(text) as { readonly pid: number; readonly log: string };
            ({ log } = told);
            const done = asOther(attack, log, way, victim);
            // No file of this user is within reach; a name beside it is nobody's.
            assert.equal(done.trim(), 'seen -failures');
            process.kill(told.pid, 'SIGUSR2');
          },
        });
        assert.equal(exitCode, 1, transcript);
        assert.match(notices.join(), /rank 0 .*\n {2}first error: Error: x\\u001b\]0;pwn\\u0007 y$/, transcript);
        assert.equal(readFileSync(victim, 'utf8'), 'kept');
        const [prefix = 'none'] = /weftline-[0-9a-f]+/.exec(log) ?? [];
        assert.deepEqual(
          readdirSync('/dev/shm').filter((name) => name.startsWith(prefix)),
          [],
        );
      } finally {
        rmSync(folder, { recursive: true });
      }
    },
  );
}
