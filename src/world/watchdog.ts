// A tiny shell process that outlives a killed launcher: it then ends the ranks and removes the job's shared memory.
import { type ChildProcess, spawn } from 'node:child_process';
import { filePrefixOf, SHARED_MEMORY_FOLDER } from './shared-memory-files.ts';

/**
 * Reads which process groups live from its input; the end of the input means that the launcher is gone, however it went.
 * It may have gone while it started a rank, of which this script then has not heard: the environment tells such ranks.
 * The second round finds what was between two system calls in the first: starting a program, creating a file.
 */
const script = `
trap "" INT TERM HUP QUIT
files=$1
mark=$2
folder=$3
groups=" "
while read -r word group; do
  case $word in
    add) groups="$groups$group " ;;
    remove) case $groups in *" $group "*) groups="\${groups%%" $group "*} \${groups#*" $group "}" ;; esac ;;
    done) exit 0 ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
for round in 1 2; do
  for path in $(grep -lsa "$mark" /proc/[0-9]*/environ); do
    pid=\${path#/proc/}
    kill -s KILL "\${pid%/environ}"
  done
  rm -f "$files"*
  [ -z "$folder" ] || rm -rf "$folder"
  [ $round = 2 ] || sleep 1
done
`;

export class Watchdog {
  readonly #process: ChildProcess;

  /** `mark` is in the environment of all processes of this launcher, and of no others; `folder` is the launcher's own. */
  constructor(jobPrefix: string, mark: string, folder = '') {
    const files = `${SHARED_MEMORY_FOLDER}/${filePrefixOf(jobPrefix)}`;
    // A session of its own: a terminal's Ctrl-C or hang-up must not reach it.
    this.#process = spawn('/bin/sh', ['-c', script, 'weftline-watchdog', files, mark, folder], {
      detached: true,
      cwd: '/',
      env: { PATH: '/usr/bin:/bin' },
      stdio: ['pipe', 'ignore', 'ignore'],
    });
    // Without a shell there is no watchdog; the ranks that joined still end with their launcher.
    this.#process.on('error', () => {});
    this.#process.stdin?.on('error', () => {});
    this.#process.unref();
  }

  add(group: number): void {
    this.#process.stdin?.write(`add ${group}\n`);
  }

  remove(group: number): void {
    this.#process.stdin?.write(`remove ${group}\n`);
  }

  /** The launcher has cleaned up itself. */
  dismiss(): void {
    this.#process.stdin?.end('done\n');
  }
}
