// Two network namespaces of this kernel, joined by a pair of virtual interfaces: as near to two machines as one machine gets.
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';

export const machines = ['a', 'b'] as const;
export type Machine = (typeof machines)[number];
export const addresses: Readonly<Record<Machine, string>> = { a: railAddress('a', 0), b: railAddress('b', 0) };

/** Each rail joins an interface of one machine, weftR, with that of the same name of the other. */
export function railAddress(machine: Machine, rail: number): string {
  return `10.72.${rail}.${machine === 'a' ? 1 : 2}`;
}

export interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Running {
  readonly ended: Promise<Ended>;
  /** Resolves, with what matched, once stdout has this; rejects when the process ends before. */
  said(text: string | RegExp): Promise<readonly string[]>;
}

/** Each with a /dev/shm of its own, so that nothing but the network joins them. */
const HOLD = 'mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready && exec cat';
const namespaces = ['--net', '--mount', '--propagation', 'private'];

/** Why this machine cannot be two; undefined if it can. */
export function whyNotTwoMachines(): string | undefined {
  if (process.getuid?.() !== 0) return 'needs root, to make network namespaces';
  const veth = 'ip link add weftline-a type veth peer name weftline-b && nsenter -t $$ -n true';
  const can =
    spawnSync('unshare', [...namespaces, 'sh', '-c', `mount -t tmpfs tmpfs /dev/shm && ${veth}`]).status === 0;
  return can ? undefined : 'needs unshare, nsenter, mount and ip with veth';
}

export class TwoMachines implements Disposable {
  readonly #holders: Readonly<Record<Machine, ChildProcess>>;

  static async create({ rails = 1 }: { readonly rails?: number } = {}): Promise<TwoMachines> {
    const [a, b] = await Promise.all([hold(), hold()]);
    const two = new TwoMachines({ a, b });
    for (let rail = 0; rail < rails; rail += 1) {
      const name = `weft${rail}`;
      // Made inside, so that the names meet no other test's.
      two.run('a', `ip link add ${name} type veth peer name ${name} netns ${b.pid}`);
      for (const machine of machines) {
        two.run(machine, `ip address add ${railAddress(machine, rail)}/24 dev ${name} && ip link set ${name} up`);
      }
    }
    return two;
  }

  private constructor(holders: Readonly<Record<Machine, ChildProcess>>) {
    this.#holders = holders;
  }

  /** Starts a Node program there. */
  start(machine: Machine, words: readonly string[], env: NodeJS.ProcessEnv = {}): Running {
    const [command = '', ...before] = this.#enter(machine);
    const child = spawn(command, [...before, process.execPath, ...words], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, NODE_TEST_CONTEXT: undefined, ...env },
      timeout: 240_000,
    });
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()));
    child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
    const ended = once(child, 'close').then(([code]: number[]) => ({ code: code ?? null, stdout, stderr }));
    const found = (text: string | RegExp): readonly string[] | null =>
      typeof text !== 'string' ? text.exec(stdout) : stdout.includes(text) ? [text] : null;
    const said = (text: string | RegExp): Promise<readonly string[]> =>
      new Promise((resolve, reject) => {
        const look = (): void => {
          const match = found(text);
          if (match !== null) resolve(match);
        };
        look();
        child.stdout.on('data', look);
        child.once('close', () => reject(new Error(`${String(text)} was not said: ${stdout}${stderr}`)));
      });
    return { ended, said };
  }

  /** Runs shell commands there. */
  run(machine: Machine, commands: string): void {
    const [command = '', ...words] = this.#enter(machine);
    execFileSync(command, [...words, 'sh', '-c', commands], { stdio: 'inherit' });
  }

  [Symbol.dispose](): void {
    for (const machine of machines) this.#holders[machine].kill('SIGKILL');
  }

  #enter(machine: Machine): string[] {
    return ['nsenter', '--target', String(this.#holders[machine].pid), '--net', '--mount'];
  }
}

async function hold(): Promise<ChildProcess> {
  const holder = spawn('unshare', [...namespaces, 'sh', '-c', HOLD], { stdio: ['pipe', 'pipe', 'inherit'] });
  await once(holder.stdout, 'data');
  return holder;
}
