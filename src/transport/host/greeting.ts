// How two transports meet over TCP, once both have proven themselves: lanes, count and ends of paths, then what passes on them.
import { MAX_ENGINES } from '../engine-commands.ts';
import { MAX_EAGER_BYTES, MAX_PATHS, TRANSPORT_VERSION } from '../wire/packet-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { printable } from '../../core/quote.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { integerField, protocolError, textField } from '../../meeting/frames.ts';
import { type Greeted, type HelloBody, type HelloOptions, receiveHello } from '../../meeting/hello.ts';
import { type PacketKeys, splitSessionKey } from '../authentication/packet-guard.ts';
import type { ControlChannel, ControlFrame } from '../../meeting/control-channel.ts';
import type { PacketIoKind, PathOptions, PeerPaths } from '../io/packet-io-kind.ts';
import { type Spread, spreads } from '../lanes/lane-choice.ts';

const PROTOCOL_NAME = 'weftline-transport';
const MAX_NAME_LENGTH = 200;

export interface GreetingOptions extends PathOptions {
  readonly io: PacketIoKind;
  /** How errors of the peer call this side. */
  readonly name: string;
  /** Most paths of an engine that this side takes, 1 to 256. */
  readonly paths: number;
  /** Addresses that this side's packets go over, as PacketIoKind.rails has them. */
  readonly rails: readonly string[];
  readonly spread: Spread;
  /** Demands that packets are authenticated; they are if one side demands it. */
  readonly authenticate: boolean;
  /** Wants receivers to give credits; they do if one side wants it. */
  readonly receiverCredits: boolean;
  /** Bytes of messages that this side sends and takes before memory was offered for them. */
  readonly eagerBytes: number;
  /** The names of engines of this side for the connection, one each: as many lanes as it takes at most. */
  readonly connectionIds: readonly number[];
}

/** What two engines, one of each side, know of the connection between them. */
interface MeetingLane {
  /** The engines' names for it, this side's and the peer's. */
  readonly localId: number;
  readonly remoteId: number;
  /** The secret of every packet. It follows from the hello and has not travelled. */
  readonly secret: bigint;
  /** If packets are authenticated: keys with the same properties. */
  readonly packetKeys: PacketKeys | undefined;
  /** Both sides give credits to the other. */
  readonly receiverCredits: boolean;
  /** The smaller setting of the two sides. */
  readonly eagerBytes: number;
}

/** What both sides know when they have met. The caller owns the paths. */
export interface Meeting {
  readonly paths: PeerPaths;
  readonly peerName: string;
  /** Lane i joins the same engines on both sides. */
  readonly lanes: readonly MeetingLane[];
  /** The setting of both sides, or `turn` if they differ. */
  readonly spread: Spread;
  /** What the peer's application said. */
  readonly hello: unknown;
  readonly segmentBytes: number;
}

/** What an application on the side that was called says to a caller, and what becomes of it. */
export interface IncomingConnection<Established> {
  /** A value that JSON expresses; the caller gets it as `hello` of its connection. */
  readonly answer: unknown;
  /** Takes the connection, which no accept() then gets. */
  readonly accept?: (connection: Established) => void;
  /** Called instead if the connection does not come about. */
  readonly cancel?: () => void;
}

/** What the side that was called does with its caller. */
interface Reception<Established> {
  /** Called once the caller has proven itself; it has offered so many lanes. */
  readonly open: (
    hello: unknown,
    lanes: number,
  ) => Promise<{ readonly options: GreetingOptions; readonly answer?: unknown }>;
  /** Makes this side's end of the connection. Owns the paths from then on, also if it fails. */
  readonly adopt: (meeting: Meeting) => Promise<Established>;
}

/**
 * The side that was called. The caller may use its end only after `adopt`: a thread that blocks in a wait for the caller's
 * first message no longer gets to adopt anything.
 */
export async function acceptPeer<Established>(
  channel: ControlChannel,
  credentials: Credentials,
  { open, adopt }: Reception<Established>,
): Promise<Established> {
  const meeting = await meetGuest(channel, credentials, open);
  try {
    const established = await adopt(meeting);
    channel.send({ adopted: true });
    return established;
  } catch (error) {
    channel.refuse(error);
    throw error;
  }
}

async function meetGuest(
  channel: ControlChannel,
  credentials: Credentials,
  open: Reception<unknown>['open'],
): Promise<Meeting> {
  let opened: Opened | undefined;
  try {
    const { body, secrets } = await receiveHello(channel, helloOf(credentials), async (hello) => {
      const peerName = nameOf(hello);
      channel.peer = peerName;
      const remoteIds = idsOf(hello);
      const { options, answer } = await open(hello['hello'], remoteIds.length);
      const lanes = Math.min(options.connectionIds.length, remoteIds.length);
      const localIds = options.connectionIds.slice(0, lanes);
      const rails = options.rails.slice(0, Math.max(1, integerField(hello, 'rails', MAX_PATHS)));
      const paths = Math.max(Math.min(options.paths, integerField(hello, 'paths', MAX_PATHS)), rails.length, 1);
      const authenticate = options.authenticate || hello['authenticate'] === true;
      const spread = hello['spread'] === options.spread ? options.spread : 'turn';
      checkIo(hello, peerName, options);
      const ends = await options.io.openPaths(channel, { lanes, paths, rails }, options);
      const receiverCredits = options.receiverCredits || hello['receiverCredits'] === true;
      const eagerBytes = Math.min(options.eagerBytes, integerField(hello, 'eagerBytes', MAX_EAGER_BYTES));
      const agreed = { spread, authenticate, receiverCredits, eagerBytes };
      opened = { paths: ends, localIds, remoteIds, ...agreed };
      return { name: options.name, connections: localIds, ...ends.offer, ...agreed, hello: answer };
    });
    if (opened === undefined) throw protocolError('a hello that nobody took');
    await opened.paths.connect(await channel.receive('ports'));
    channel.send({ connected: true });
    return await finish({ body, secrets }, opened, 'listener');
  } catch (error) {
    opened?.paths[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** What the side that calls says of itself. */
export function introduce(options: GreetingOptions, hello: unknown): HelloBody {
  const { name, connectionIds, paths, rails, spread, authenticate, receiverCredits, eagerBytes } = options;
  const wishes = { io: options.io.name, paths, rails: rails.length, spread, authenticate, receiverCredits, eagerBytes };
  return { name, connections: connectionIds, ...wishes, hello };
}

/** Fails with WL_CONFIG on both sides, in the same words, unless the caller carries packets as this side does. */
function checkIo(hello: ControlFrame, peerName: string, { io, name }: GreetingOptions): void {
  const theirs = textField(hello, 'io');
  if (theirs === io.name) return;
  const said = printable(theirs, MAX_NAME_LENGTH);
  throw new WeftlineError(
    'WL_CONFIG',
    `${peerName} carries packets over ${said}, ${name} over ${io.name}: set WEFTLINE_TRANSPORT_IO (udp, verbs) and WEFTLINE_RDMA_SERVICE alike on both sides; verbs needs RDMA devices on both, which "weftline doctor --rdma" shows`,
    { details: { peer: peerName, theirs: said, ours: io.name } },
  );
}

/** The side that calls, after the hello. */
export async function connectPeer(
  channel: ControlChannel,
  { body, secrets }: Greeted,
  options: GreetingOptions,
): Promise<Meeting> {
  let paths: PeerPaths | undefined;
  try {
    channel.peer = nameOf(body);
    const remoteIds = idsOf(body);
    const lanes = remoteIds.length;
    if (lanes > options.connectionIds.length) throw protocolError(`${lanes} lanes, more than were offered`);
    const counts = options.io.countsOf(body);
    if (counts.paths % lanes !== 0) throw protocolError(`${counts.paths} paths for ${lanes} lanes`);
    const rails = options.rails.slice(0, Math.max(1, counts.rails));
    const plan = { lanes, paths: counts.paths / lanes, rails };
    if (plan.paths > Math.max(options.paths, rails.length)) throw protocolError(`${plan.paths} paths of each lane`);
    paths = await options.io.openPaths(channel, plan, options);
    await paths.connect(body);
    channel.send(paths.offer);
    await channel.receive('sign that its sockets are connected');
    const authenticate = body['authenticate'] === true;
    if (options.authenticate && !authenticate) throw protocolError('an answer that refuses to authenticate packets');
    const spread = spreads.find((known) => known === body['spread']);
    if (spread === undefined) throw protocolError('an answer that does not say how messages are spread');
    const localIds = options.connectionIds.slice(0, lanes);
    const receiverCredits = body['receiverCredits'] === true;
    const eagerBytes = integerField(body, 'eagerBytes', options.eagerBytes);
    const opened = { paths, localIds, remoteIds, spread, authenticate, receiverCredits, eagerBytes };
    const meeting = await finish({ body, secrets }, opened, 'caller');
    await channel.receive('sign that it has adopted the connection');
    return meeting;
  } catch (error) {
    paths?.[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** What the hello led to. Paths are connected on both sides when it is finished. */
interface Opened {
  readonly paths: PeerPaths;
  readonly localIds: readonly number[];
  readonly remoteIds: readonly number[];
  readonly spread: Spread;
  readonly authenticate: boolean;
  readonly receiverCredits: boolean;
  readonly eagerBytes: number;
}

async function finish(
  { body, secrets }: Greeted,
  { paths, localIds, remoteIds, spread, authenticate, receiverCredits, eagerBytes }: Opened,
  side: Parameters<typeof splitSessionKey>[1],
): Promise<Meeting> {
  // Lanes number their packets alike: each has a secret and keys of its own, or packets of one would do for another.
  const lanes = localIds.map((localId, lane): MeetingLane => {
    const secret = Buffer.from(secrets.key(`packet secret ${lane}`, 8)).readBigUInt64LE();
    const packetKeys = authenticate ? splitSessionKey(secrets.key(`packets ${lane}`), side) : undefined;
    return { localId, remoteId: remoteIds[lane]!, secret, packetKeys, receiverCredits, eagerBytes };
  });
  const segmentBytes = await paths.agree((lanes[0] as MeetingLane).secret);
  return { paths, lanes, spread, segmentBytes, peerName: nameOf(body), hello: body['hello'] };
}

function idsOf(frame: ControlFrame): readonly number[] {
  const ids = frame['connections'];
  const areGood = Array.isArray(ids) && ids.length >= 1 && ids.length <= MAX_ENGINES && ids.every(isId);
  if (areGood) return ids;
  throw protocolError('a greeting without names of the connection');
}

function isId(id: unknown): id is number {
  return typeof id === 'number' && Number.isInteger(id) && id >= 0 && id < 2 ** 32;
}

export function helloOf(credentials: Credentials): HelloOptions {
  return { protocol: PROTOCOL_NAME, version: TRANSPORT_VERSION, credentials };
}

function nameOf(frame: ControlFrame): string {
  return printable(textField(frame, 'name'), MAX_NAME_LENGTH);
}
