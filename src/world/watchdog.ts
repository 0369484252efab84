// A tiny shell process that outlives a killed launcher: it then ends the ranks and removes the job's shared memory.
import { type ChildProcess, spawn } from 'node:child_process';
import { FILE_PREFIX, SHARED_MEMORY_FOLDER } from './shared-memory-files.ts';

/**
 * Reads which process groups live from its input; the end of the input means that the launcher is gone, however it went.
 * The pause lets killed processes finish the system call that they were in, which may create a file.
 */
const script = `
trap "" INT TERM HUP QUIT
groups=" "
while read -r word group; do
  case $word in
    add) groups="$groups$group " ;;
    remove) case $groups in *" $group "*) groups="\${groups%%" $group "*} \${groups#*" $group "}" ;; esac ;;
    done) exit 0 ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
rm -f "$1"*
sleep 1
rm -f "$1"*
`;

export class Watchdog {
  readonly #process: ChildProcess;

  constructor(jobPrefix: string) {
    const files = `${SHARED_MEMORY_FOLDER}/${FILE_PREFIX}${jobPrefix}`;
    // A session of its own: a terminal's Ctrl-C or hang-up must not reach it.
    this.#process = spawn('/bin/sh', ['-c', script, 'weftline-watchdog', files], {
      detached: true,
      cwd: '/',
      env: {},
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
