// Two network namespaces of one kernel, joined by a middlebox in this process. To be used inside `unshare -n`, as root.
// The second one has a /dev/shm of its own, so that nothing but the network joins them.
import { execFileSync, fork, spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { TunDevice } from '../../support/tun-device.ts';
import { Network } from './impairment.ts';

export const addresses = { here: '10.71.0.1', there: '10.71.0.2' } as const;
export type Host = keyof typeof addresses;
const MTU = 1500;

/** Why this machine has no two hosts; undefined if it has. */
export function whyNoTwoHosts(): string | undefined {
  if (process.getuid?.() !== 0) return 'needs root, to make network namespaces';
  const command = 'ip link set lo up && ip tuntap add dev weftline0 mode tun && nsenter -t $$ -n true';
  const mounted = `mount -t tmpfs tmpfs /dev/shm && ${command}`;
  const can = spawnSync('unshare', ['-n', '-m', '--propagation', 'private', 'sh', '-c', mounted]).status === 0;
  return can ? undefined : 'needs unshare, nsenter, mount, ip and /dev/net/tun';
}

export class TwoHosts implements Disposable {
  readonly network: Network;
  readonly #tuns: readonly [TunDevice, TunDevice];
  readonly #holder: ChildProcess;

  static async create(seed: number): Promise<TwoHosts> {
    // Holds the second namespace, and ends with this process.
    const hold = 'mount -t tmpfs tmpfs /dev/shm && echo ready && exec cat';
    const words = ['-n', '-m', '--propagation', 'private', 'sh', '-c', hold];
    const holder = spawn('unshare', words, { stdio: ['pipe', 'pipe', 'inherit'] });
    await once(holder.stdout, 'data');
    return new TwoHosts(seed, holder);
  }

  private constructor(seed: number, holder: ChildProcess) {
    this.network = new Network(seed);
    this.#holder = holder;
    this.#tuns = [new TunDevice('here0'), new TunDevice('there0')];
    run('ip', 'link', 'set', 'there0', 'netns', String(holder.pid));
    for (const host of ['here', 'there'] as const) {
      const enter = this.#enter(host);
      run(...enter, 'ip', 'address', 'add', `${addresses[host]}/24`, 'dev', `${host}0`);
      run(...enter, 'ip', 'link', 'set', `${host}0`, 'mtu', String(MTU), 'up');
      run(...enter, 'ip', 'link', 'set', 'lo', 'up');
    }
    const [here, there] = this.#tuns;
    here.onPacket((packet) => this.#carry(packet, there));
    there.onPacket((packet) => this.#carry(packet, here));
  }

  /** Runs a compiled module on a host. */
  fork(host: Host, script: string, words: readonly string[]): ChildProcess {
    const [command, ...before] = [...this.#enter(host), process.execPath];
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
    if (command === process.execPath) return fork(script, words, { env, execArgv: [], serialization: 'advanced' });
    return fork(script, words, { env, execPath: command, execArgv: before, serialization: 'advanced' });
  }

  [Symbol.dispose](): void {
    for (const tun of this.#tuns) tun[Symbol.dispose]();
    this.#holder.kill('SIGKILL');
  }

  #enter(host: Host): readonly string[] {
    return host === 'here' ? [] : ['nsenter', '-t', String(this.#holder.pid), '-n', '-m'];
  }

  #carry(packet: Buffer, to: TunDevice): void {
    for (const { packet: copy, afterMs } of this.network.pass(packet)) {
      if (afterMs === 0) to.send(copy);
      else setTimeout(() => to.send(copy), afterMs);
    }
  }
}

function run(...[command = '', ...words]: readonly string[]): void {
  execFileSync(command, words, { stdio: 'inherit' });
}
