// Two hosts of this machine: namespaces of the network, /dev/shm, System V memory and the host name, joined by a pair of
// virtual interfaces. They end with the process that made them.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';

export const INTERFACE = 'weft0';
/** By host. */
export const addresses = ['10.72.0.1', '10.72.0.2'];
const hold = (host) =>
  `mount -t tmpfs tmpfs /dev/shm && hostname weftline-${host} && ip link set lo up && echo ready && exec cat`;

/** Why this machine cannot be two hosts; undefined if it can. */
export function whyNotTwoHosts() {
  if (process.getuid?.() !== 0) return 'it must run as root, to make namespaces';
  const probe = 'mount -t tmpfs tmpfs /dev/shm && ip link add weftline-a type veth peer name weftline-b';
  const { status, stderr, error } = spawnSync('unshare', ['--net', '--mount', '--uts', '--ipc', 'sh', '-c', probe]);
  if (status === 0) return undefined;
  return `unshare, mount and ip with veth are needed: ${error?.message ?? stderr}`;
}

export class TwoHosts {
  #holders;
  #running = new Set();

  /** `rate`: of the link in each direction, in words of tc ("10gbit"); without one, what the processors carry. */
  static async open({ mtu, rate }) {
    const holders = [];
    for (const host of [0, 1]) {
      const words = ['--net', '--mount', '--propagation', 'private', '--uts', '--ipc', 'sh', '-c', hold(host)];
      const holder = spawn('unshare', words, { stdio: ['pipe', 'pipe', 'inherit'] });
      holders.push(holder);
      const ready = await Promise.race([once(holder.stdout, 'data'), once(holder, 'exit')]);
      if (String(ready[0]).trim() !== 'ready') throw new Error(`Host ${host} was not made`);
    }
    const hosts = new TwoHosts(holders);
    hosts.run(
      0,
      `ip link add ${INTERFACE} mtu ${mtu} type veth peer name ${INTERFACE} mtu ${mtu} netns ${holders[1].pid}`,
    );
    for (const host of [0, 1]) {
      hosts.run(host, `ip address add ${addresses[host]}/24 dev ${INTERFACE} && ip link set ${INTERFACE} up`);
      const shape = `tc qdisc add dev ${INTERFACE} root tbf rate ${rate} burst 256kb latency 20ms`;
      if (rate !== undefined) hosts.run(host, shape);
    }
    return hosts;
  }

  constructor(holders) {
    this.#holders = holders;
  }

  /** What a command must begin with to run on the host. */
  enter(host) {
    return ['nsenter', '--target', String(this.#holders[host].pid), '--net', '--mount', '--uts', '--ipc'];
  }

  /** Shell commands, which must succeed. */
  run(host, commands) {
    const [command, ...words] = this.enter(host);
    const { status, stderr } = spawnSync(command, [...words, 'sh', '-c', commands], { encoding: 'utf8' });
    if (status !== 0) throw new Error(`"${commands}" failed on host ${host}: ${stderr}`);
  }

  /** Resolves to what the program printed; fails with it if it ends in another way than well, or after `timeoutMs`. */
  async start(host, program, { env = {}, timeoutMs }) {
    const [command, ...words] = [...this.enter(host), ...program];
    const child = spawn(command, words, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
      timeout: timeoutMs,
      killSignal: 'SIGKILL',
    });
    this.#running.add(child);
    const said = { out: '', error: '' };
    child.stdout.on('data', (chunk) => (said.out += chunk));
    child.stderr.on('data', (chunk) => (said.error += chunk));
    const failed = once(child, 'error').then(([error]) => Promise.reject(error));
    failed.catch(() => {});
    const [code, signal] = await Promise.race([once(child, 'close'), failed]);
    this.#running.delete(child);
    if (code === 0) return said.out;
    const how = signal === null ? `exit code ${code}` : `signal ${signal} (at most ${timeoutMs} ms are given)`;
    throw new Error(`${program.join(' ')}\non host ${host} ended with ${how}:\n${said.out}${said.error}`);
  }

  close() {
    for (const child of [...this.#running, ...this.#holders]) child.kill('SIGKILL');
  }
}
