// One of two transports that exchange traffic of every kind, checked byte by byte. Arguments: `listen` or `call`, settings as
// JSON, the address to listen at or to call, the port to call. The caller goes on until it has seen a rail die and come back,
// and lose packets; it says how far it is, and prints its statistics.
import assert from 'node:assert/strict';
import type { Settings } from 'weftline';
import { type Connection, type MemoryRegion, type RequestHandle, Transport } from 'weftline/transport';

const [role = '', settingsText = '{}', host = '', port = '0'] = process.argv.slice(2);
const settings = JSON.parse(settingsText) as Partial<Settings>;
const isCaller = role === 'call';
const MESSAGES = 2;
const MESSAGE_BYTES = 200_000;
const WRITE_BYTES = 300_000;
const READ_BYTES = 150_000;
const SIGNALS = 50;
const ROUNDS_WITHOUT_HARM = 2;
const PATIENCE_MS = 60_000;

const transport = await Transport.create({ name: isCaller ? 'caller' : 'listener', settings });
const connection = await (isCaller ? transport.connect({ host, port: Number(port) }) : accept());

async function accept(): Promise<Connection> {
  using listener = await transport.listen({ host, port: 0 });
  console.log(`port ${listener.port}.`);
  return await listener.accept({ timeoutMs: PATIENCE_MS });
}

function register(bytes: number, remote = {}): Promise<MemoryRegion> {
  return transport.register(new Uint8Array(new SharedArrayBuffer(bytes)), remote);
}

function fill(bytes: Uint8Array, seed: number): Uint8Array {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  for (let at = 0; at < words.length; at += 1) words[at] = Math.imul(at + (seed << 20), 2_654_435_761);
  return bytes;
}

/** Different for each round, side and use. */
function salt(round: number, ofCaller: boolean, use: number): number {
  return (round * 2 + Number(ofCaller)) * (MESSAGES + 2) + use;
}

const expected = new Uint8Array(Math.max(MESSAGE_BYTES, WRITE_BYTES, READ_BYTES));
function check(bytes: Uint8Array, ofPeer: number, what: string): void {
  const wanted = fill(expected.subarray(0, bytes.length), ofPeer);
  assert.equal(Buffer.compare(bytes, wanted), 0, what);
}

const out = await register(MESSAGES * MESSAGE_BYTES);
const into = await register(MESSAGES * MESSAGE_BYTES);
const source = await register(WRITE_BYTES);
/** What the peer writes to, for even and odd rounds, and two cells for its signals. */
const window = await register(2 * WRITE_BYTES + 16, { write: true });
const cells = new BigUint64Array(window.bytes.buffer, 2 * WRITE_BYTES, 2);
const offered = await register(READ_BYTES, { read: true });
const fetched = await register(READ_BYTES);
/** Memory of the message that ends a round: 1 in the last one. */
const note = await register(2);
fill(offered.bytes, salt(0, isCaller, MESSAGES));

async function cellReaches(cell: 0 | 1, value: number): Promise<void> {
  for (const end = performance.now() + PATIENCE_MS; Atomics.load(cells, cell) < BigInt(value);) {
    assert.ok(performance.now() < end, `signals: ${cells.join()}, expected ${value} in cell ${cell}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

type Remote = MemoryRegion['remote'];

async function meet(): Promise<{ readonly window: Remote; readonly offered: Remote }> {
  const told = Buffer.from(JSON.stringify({ window: window.remote, offered: offered.remote }));
  const [mine, theirs] = [await transport.register(told), await register(1000)];
  const receive = connection.receive({ region: theirs });
  await transport.wait(connection.send({ region: mine }));
  const bytes = await transport.wait(receive);
  return JSON.parse(Buffer.from(theirs.bytes.slice(0, bytes)).toString()) as Awaited<ReturnType<typeof meet>>;
}

const peer = await meet();

/** Traffic of every kind, both ways. True if it was the last. */
async function exchange(round: number, isLast: boolean): Promise<boolean> {
  const requests: RequestHandle[] = [];
  for (let index = 0; index < MESSAGES; index += 1) {
    const part = { offset: index * MESSAGE_BYTES, bytes: MESSAGE_BYTES, flow: index };
    fill(out.bytes.subarray(part.offset, part.offset + MESSAGE_BYTES), salt(round, isCaller, index));
    requests.push(connection.receive({ region: into, ...part }), connection.send({ region: out, ...part }));
  }
  const flow = MESSAGES;
  const place = (round % 2) * WRITE_BYTES;
  fill(source.bytes, salt(round, isCaller, MESSAGES + 1));
  requests.push(connection.write({ region: source, ...peer.window, remoteOffset: place, flow }));
  requests.push(connection.signal({ ...peer.window, remoteOffset: 2 * WRITE_BYTES, add: 1, flow }));
  for (let index = 0; index < SIGNALS; index += 1) {
    requests.push(connection.signal({ ...peer.window, remoteOffset: 2 * WRITE_BYTES + 8, add: 1, flow: flow + 1 }));
  }
  fetched.bytes.fill(0);
  requests.push(connection.read({ region: fetched, ...peer.offered }));
  await cellReaches(0, round + 1);
  // At the very moment that the counter shows the signal.
  check(window.bytes.subarray(place, place + WRITE_BYTES), salt(round, !isCaller, MESSAGES + 1), `write ${round}`);
  for (const request of requests) await transport.wait(request, { timeoutMs: PATIENCE_MS });
  for (let index = 0; index < MESSAGES; index += 1) {
    const bytes = into.bytes.subarray(index * MESSAGE_BYTES, (index + 1) * MESSAGE_BYTES);
    check(bytes, salt(round, !isCaller, index), `message ${index} of round ${round}`);
  }
  check(fetched.bytes, salt(0, !isCaller, MESSAGES), `read ${round}`);
  await cellReaches(1, (round + 1) * SIGNALS);
  note.bytes[0] = Number(isLast);
  const ends = [
    connection.receive({ region: note, offset: 1, bytes: 1, flow: flow + 2 }),
    connection.send({ region: note, bytes: 1, flow: flow + 2 }),
  ];
  for (const end of ends) await transport.wait(end, { timeoutMs: PATIENCE_MS });
  return isLast || note.bytes[1] === 1;
}

let round = 0;
async function exchangeUntil(done: () => boolean | Promise<boolean>, what: string): Promise<void> {
  for (const end = performance.now() + PATIENCE_MS; !(await done());) {
    assert.ok(performance.now() < end, `Waited in vain: ${what}`);
    await exchange(round, false);
    round += 1;
  }
  console.log(`${what}.`);
}

async function runCaller(): Promise<void> {
  const statistics = async () => (await connection.statistics()).connection;
  const rails = connection.rails.length;
  const lost = async () => (await statistics()).paths.reduce((sum, { lostSegments }) => sum + lostSegments, 0);
  await exchangeUntil(() => round === ROUNDS_WITHOUT_HARM, 'all is well');
  await exchangeUntil(async () => {
    const { timeouts, paths } = await statistics();
    if (rails === 1) return timeouts > 0;
    const states = connection.rails;
    // Rails of a busy machine may seem dead for a moment, too.
    const othersLive = states.slice(0, -1).every(({ isUp, deadSince }) => isUp && deadSince === undefined);
    return othersLive && paths.some(({ alive }) => !alive) && states.at(-1)!.livePaths < states.at(-1)!.paths;
  }, 'a rail is dead');
  await exchangeUntil(async () => {
    const { paths } = await statistics();
    return paths.every(({ alive }) => alive) && connection.rails.every((rail) => rail.livePaths === rail.paths);
  }, 'all rails live');
  const before = await lost();
  await exchangeUntil(async () => (await lost()) > before + 5, 'packets are lost');
  const found = await connection.statistics();
  await exchange(round, true);
  console.log(JSON.stringify(found));
}

if (isCaller) await runCaller();
else while (!(await exchange(round, false))) round += 1;
await transport.close();
