// iperf3, where it is installed: what TCP reaches between the same two hosts in the same minute.
import { type ChildProcess, spawn } from 'node:child_process';
import { createServer } from 'node:net';

/** One run of the server, which ends by itself after its client. */
export class IperfServer {
  readonly port: number;
  readonly #child: ChildProcess;

  /** Listens at that address alone. undefined if iperf3 is not installed. */
  static async start(host: string): Promise<IperfServer | undefined> {
    const port = await freePort(host);
    const child = spawn('iperf3', ['-s', '-1', '--forceflush', '-B', host, '-p', String(port)], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    const isThere = await new Promise<boolean>((resolve) => {
      child.once('error', () => resolve(false));
      child.stdout.once('data', () => resolve(true));
      child.once('exit', () => resolve(false));
    });
    return isThere ? new IperfServer(child, port) : undefined;
  }

  private constructor(child: ChildProcess, port: number) {
    this.#child = child;
    this.port = port;
  }

  stop(): void {
    this.#child.kill();
  }
}

/** Gbps that arrive with one TCP connection and writes of 1 MiB; undefined if iperf3 is missing or failed. */
export function runIperf(host: string, port: number, seconds: number): Promise<number | undefined> {
  const words = ['-c', host, '-p', String(port), '-l', '1M', '-t', String(seconds), '-J'];
  return new Promise((resolve) => {
    const child = spawn('iperf3', words, { stdio: ['ignore', 'pipe', 'ignore'] });
    let text = '';
    child.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()));
    child.once('error', () => resolve(undefined));
    child.once('close', () => resolve(received(text)));
  });
}

function received(text: string): number | undefined {
  try {
    const document = JSON.parse(text) as {
      readonly end?: { readonly sum_received?: { readonly bits_per_second?: number } };
    };
    const bits = document.end?.sum_received?.bits_per_second;
    return bits === undefined ? undefined : bits / 1e9;
  } catch {
    return undefined;
  }
}

export function freePort(host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, host, () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}
