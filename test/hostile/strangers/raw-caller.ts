// Connections of strangers, byte by byte: what they send, what comes back, and whether it is anything but a refusal.
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { FrameReader } from '#lib/meeting/frames.js';

const host = '127.0.0.1';

export interface Reply {
  /** Headers of the frames that came. */
  readonly frames: readonly Readonly<Record<string, unknown>>[];
  /** False if the host left the connection open until `waitMs` had passed. */
  readonly wasClosed: boolean;
}

/** Sends pieces one after the other, `gapMs` apart, and listens until the host hangs up. */
export async function visit(
  port: number,
  pieces: readonly Uint8Array[],
  { waitMs, gapMs = 0 }: { readonly waitMs: number; readonly gapMs?: number },
): Promise<Reply> {
  const socket = connect({ host, port });
  const reader = new FrameReader({ headerBytes: 1 << 20, payloadBytes: 1 << 20 });
  const frames: Readonly<Record<string, unknown>>[] = [];
  socket.on('error', () => {});
  socket.on('data', (chunk) => {
    reader.push(chunk);
    for (let frame = reader.next(); frame !== undefined; frame = reader.next()) frames.push(frame.header);
  });
  const closed = new Promise<boolean>((resolve) => socket.once('close', () => resolve(true)));
  const late = new Promise<boolean>((resolve) => setTimeout(() => resolve(false), waitMs).unref());
  const talk = async (): Promise<void> => {
    for (const piece of pieces) {
      if (socket.destroyed) return;
      socket.write(piece);
      await new Promise((resolve) => setTimeout(resolve, gapMs));
    }
  };
  void talk();
  const wasClosed = await Promise.race([closed, late]);
  socket.destroy();
  return { frames, wasClosed };
}

/** The host says hello to anybody; whatever else it says must be a refusal. */
export function beyondRefusal({ frames }: Reply): readonly Readonly<Record<string, unknown>>[] {
  return frames.slice(1).filter((header) => header['refused'] === undefined);
}

/** Connections that say nothing. */
export async function flood(port: number, count: number): Promise<readonly Socket[]> {
  const sockets: Socket[] = [];
  for (let at = 0; at < count; at++) {
    const socket = connect({ host, port });
    socket.on('error', () => {});
    socket.resume();
    sockets.push(socket);
    // No faster than the host's queue of connections takes them.
    if (at % 50 === 49) await once(socket, 'connect').catch(() => {});
  }
  return sockets;
}

/** Listens in between an honest caller and a host, and writes down what the caller says. */
export class Recorder implements Disposable {
  readonly port: number;
  readonly said: Buffer[] = [];
  readonly #server: ReturnType<typeof createServer>;

  static async start(port: number): Promise<Recorder> {
    const said: Buffer[] = [];
    const server = createServer((caller) => {
      const there = connect({ host, port });
      caller.on('data', (chunk) => {
        said.push(chunk);
        there.write(chunk);
      });
      there.on('data', (chunk) => caller.write(chunk));
      for (const [one, other] of [
        [caller, there],
        [there, caller],
      ] as const) {
        one.on('error', () => other.destroy());
        one.on('end', () => other.end());
        one.on('close', () => other.destroy());
      }
    }).listen(0, host);
    await once(server, 'listening');
    return new Recorder(server, said);
  }

  private constructor(server: ReturnType<typeof createServer>, said: Buffer[]) {
    this.#server = server;
    this.said = said;
    this.port = (server.address() as AddressInfo).port;
  }

  [Symbol.dispose](): void {
    this.#server.close();
  }
}
