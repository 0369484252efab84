// How two transports meet over TCP, once both have proven themselves: count and ends of paths, then what passes on them.
import { MAX_PATHS, TRANSPORT_VERSION } from '../../abi/transport-packet.ts';
import { printable } from '../../core/quote.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { integerField, textField } from '../../meeting/frame-fields.ts';
import { protocolError } from '../../meeting/frames.ts';
import { type Greeted, type HelloBody, type HelloOptions, receiveHello } from '../../meeting/hello.ts';
import { type PacketKeys, splitSessionKey } from '../authentication/packet-keys.ts';
import type { ControlChannel, ControlFrame } from '../../meeting/control-channel.ts';
import type { PacketIoKind, PathOptions, PeerPaths } from '../io/packet-io-kind.ts';

const PROTOCOL_NAME = 'weftline-transport';
const MAX_NAME_LENGTH = 200;

export interface GreetingOptions extends PathOptions {
  readonly io: PacketIoKind;
  /** How errors of the peer call this side. */
  readonly name: string;
  /** Most paths that this side takes, 1 to 256. */
  readonly paths: number;
  /** Demands that packets are authenticated; they are if one side demands it. */
  readonly authenticate: boolean;
  /** Wants receivers to give credits; they do if one side wants it. */
  readonly receiverCredits: boolean;
  /** This engine's name for the connection. */
  readonly connectionId: number;
}

/** What both sides know when they have met. The caller owns the paths. */
export interface Meeting {
  readonly paths: PeerPaths;
  readonly peerName: string;
  /** The engines' names for the connection, this side's and the peer's. */
  readonly localId: number;
  readonly remoteId: number;
  /** Of every packet. It follows from the hello and has not travelled. */
  readonly secret: bigint;
  /** If packets are authenticated: keys with the same properties. */
  readonly packetKeys: PacketKeys | undefined;
  /** Both sides give credits to the other. */
  readonly receiverCredits: boolean;
  /** What the peer's application said. */
  readonly hello: unknown;
  readonly segmentBytes: number;
}

/** What an application on the side that was called says to a caller, and what becomes of it. */
export interface Guest<Established> {
  /** As JSON expresses it; the caller gets it as `hello` of its connection. */
  readonly answer: unknown;
  /** Takes the connection, which no accept() then gets. */
  readonly adopt?: (connection: Established) => void;
  /** Called instead if the connection does not come about. */
  readonly abandon?: () => void;
}

/** What the side that was called does with its caller. */
export interface Reception<Established> {
  /** Called once the caller has proven itself. */
  readonly open: (hello: unknown) => Promise<{ readonly options: GreetingOptions; readonly answer?: unknown }>;
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
  const opened: Opened = { paths: undefined, localId: 0, authenticate: false, receiverCredits: false };
  try {
    const { body, secrets } = await receiveHello(channel, helloOf(credentials), async (hello) => {
      const peerName = nameOf(hello);
      channel.peer = peerName;
      const { options, answer } = await open(hello['hello']);
      const count = Math.min(options.paths, integerField(hello, 'paths', MAX_PATHS));
      const paths = options.io.openPaths(channel, count, options);
      const authenticate = options.authenticate || hello['authenticate'] === true;
      opened.paths = paths;
      opened.localId = options.connectionId;
      const receiverCredits = options.receiverCredits || hello['receiverCredits'] === true;
      opened.authenticate = authenticate;
      opened.receiverCredits = receiverCredits;
      const agreed = { ...paths.offer, authenticate, receiverCredits };
      return { name: options.name, connection: options.connectionId, ...agreed, hello: answer };
    });
    const { paths, localId, authenticate, receiverCredits } = opened;
    if (paths === undefined) throw protocolError('a hello that nobody took');
    paths.connect(await channel.receive('ports'));
    channel.send({ connected: true });
    const packetKeys = authenticate ? splitSessionKey(secrets.key('packets'), 'listener') : undefined;
    return await finish({ body, secrets, paths, localId, packetKeys, receiverCredits });
  } catch (error) {
    opened.paths?.[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** What the side that calls says of itself. */
export function introduce(options: GreetingOptions, hello: unknown): HelloBody {
  const { name, connectionId, paths, authenticate, receiverCredits } = options;
  return { name, connection: connectionId, paths, authenticate, receiverCredits, hello };
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
    paths = options.io.openPaths(channel, options.io.countOf(body), options);
    paths.connect(body);
    channel.send(paths.offer);
    await channel.receive('sign that its sockets are connected');
    const authenticate = body['authenticate'] === true;
    if (options.authenticate && !authenticate) throw protocolError('an answer that refuses to authenticate packets');
    const packetKeys = authenticate ? splitSessionKey(secrets.key('packets'), 'caller') : undefined;
    const receiverCredits = body['receiverCredits'] === true;
    const localId = options.connectionId;
    const meeting = await finish({ body, secrets, paths, localId, packetKeys, receiverCredits });
    await channel.receive('sign that it has adopted the connection');
    return meeting;
  } catch (error) {
    paths?.[Symbol.dispose]();
    channel.refuse(error);
    throw error;
  }
}

/** What the hello led to. */
interface Opened {
  paths: PeerPaths | undefined;
  localId: number;
  authenticate: boolean;
  receiverCredits: boolean;
}

/** Paths are connected on both sides. */
async function finish({
  body,
  secrets,
  ...known
}: Greeted & Pick<Meeting, 'paths' | 'localId' | 'packetKeys' | 'receiverCredits'>): Promise<Meeting> {
  const secret = Buffer.from(secrets.key('packet secret', 8)).readBigUInt64LE();
  return {
    ...known,
    segmentBytes: await known.paths.agree(secret),
    peerName: nameOf(body),
    remoteId: integerField(body, 'connection', 2 ** 32 - 1),
    secret,
    hello: body['hello'],
  };
}

export function helloOf(credentials: Credentials): HelloOptions {
  return { protocol: PROTOCOL_NAME, version: TRANSPORT_VERSION, credentials };
}

function nameOf(frame: ControlFrame): string {
  return printable(textField(frame, 'name'), MAX_NAME_LENGTH);
}
