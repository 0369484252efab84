// Packets over queue pairs of an RDMA device: many queue pairs are many paths. The engines make them; this side of the file
// meets the peer.
import { MAX_ENGINES } from '../../engine-commands.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { ControlChannel, ControlFrame } from '../../../meeting/control-channel.ts';
import { integerField, protocolError } from '../../../meeting/frames.ts';
import type { QueuePairService } from '../../../native/verbs/queue-pair.ts';
import type {
  EndsProbe,
  EngineEnds,
  MadeEnds,
  PacketIoKind,
  PathEndpoint,
  PathOptions,
  PathPlan,
  PeerPaths,
  RailPair,
} from '../packet-io-kind.ts';
import { countOf, gidsOf, packetRails } from './verbs-port.ts';
import { VerbsLoop } from './verbs-loop.ts';

/** How long a probe may take after the peer has sent it: probes cross within this where nothing is wrong. */
const PROBE_PATIENCE_MS = 500;
const MIN_PACKET_BYTES = 512;
const MAX_PACKET_BYTES = 65_472;
/**
 * Bytes of a message of RC, where the device repeats what is lost. A message of UC is lost with any of its parts, so it has
 * one by default.
 */
const RC_MESSAGE_BYTES = 16_384;

export const verbs: Readonly<Record<QueuePairService, PacketIoKind>> = {
  ud: verbsOver('ud'),
  uc: verbsOver('uc'),
  rc: verbsOver('rc'),
};

function verbsOver(service: QueuePairService): PacketIoKind {
  return {
    name: `verbs/${service}`,
    rails: (settings) => packetRails(settings).map(({ gid }) => gid.gid),
    openLoop: (options) => {
      const { transportSegmentBytes } = options.settings;
      const packetBytes = (mtu: number): number => packetSize(service, mtu, transportSegmentBytes);
      return new VerbsLoop({ ...options, service, packetBytes });
    },
    openPaths: (channel, plan, options) => VerbsPaths.open(channel, plan, options),
    countsOf: (offer) => {
      const lanes = lanesOf(offer);
      return { paths: lanes.reduce<number>((sum, lane) => sum + countOf(lane), 0), rails: gidsOf(lanes[0]).length };
    },
  };
}

/** A datagram is one packet of the network; messages of connections are cut by the device. */
function packetSize(service: QueuePairService, mtu: number, wanted: number): number {
  const most = service === 'ud' ? mtu : MAX_PACKET_BYTES;
  const usual = service === 'rc' ? RC_MESSAGE_BYTES : mtu;
  return Math.floor(Math.min(most, wanted === 0 ? usual : Math.max(wanted, MIN_PACKET_BYTES)) / 8) * 8;
}

class VerbsPaths implements PeerPaths {
  readonly cutsSends = false;
  readonly count: number;
  readonly offer: ControlFrame;
  readonly #channel: ControlChannel;
  readonly #engines: readonly EngineEnds[];
  /** Ends in the order of lanes. */
  readonly #made: readonly MadeEnds[];
  rails: readonly RailPair[] = [];
  /** Lanes whose ends belong to the engines' connections. */
  readonly #given = new Set<number>();

  static async open(channel: ControlChannel, plan: PathPlan, { engines }: PathOptions): Promise<VerbsPaths> {
    const used = engines.slice(0, plan.lanes);
    const ends = { count: plan.paths, rails: Math.max(1, plan.rails.length) };
    const opened = await Promise.allSettled(used.map((engine) => engine.open(ends)));
    const made = opened.flatMap((end) => (end.status === 'fulfilled' ? [end.value] : []));
    const failed = opened.find((end) => end.status === 'rejected');
    if (failed === undefined) return new VerbsPaths(channel, used, made);
    for (const [lane, end] of opened.entries()) {
      if (end.status === 'fulfilled') closeLater(used[lane] as EngineEnds, end.value);
    }
    throw failed.reason;
  }

  private constructor(channel: ControlChannel, engines: readonly EngineEnds[], made: readonly MadeEnds[]) {
    this.#channel = channel;
    this.#engines = engines;
    this.#made = made;
    this.count = made.reduce((sum, { ends }) => sum + ends.length, 0);
    this.offer = { lanes: made.map(({ offer }) => offer) };
  }

  async connect(peerOffer: ControlFrame): Promise<void> {
    const lanes = lanesOf(peerOffer);
    if (lanes.length !== this.#made.length) throw protocolError(`${lanes.length} lanes for ${this.#made.length}`);
    const own = gidsOf(this.#made[0]?.offer);
    for (const lane of lanes) {
      const count = gidsOf(lane).length;
      if (count !== own.length) throw protocolError(`${count} rails where ${own.length} were agreed on`);
    }
    const theirs = gidsOf(lanes[0]);
    this.rails = own.map((gid, rail) => ({ local: grouped(gid), remote: grouped(theirs[rail] as string) }));
    await Promise.all(
      this.#made.map(({ ends }, lane) => (this.#engines[lane] as EngineEnds).connect({ ends, offer: lanes[lane] })),
    );
  }

  /** Each rail has its own size; the smallest of those that pass packets at all goes for all. */
  async agree(secret: bigint): Promise<number> {
    const channel = this.#channel;
    const engine = this.#engines[0] as EngineEnds;
    const probes = this.rails.map((_, rail) => ({ ends: [(this.#made[0] as MadeEnds).ends[rail] as number], secret }));
    const sent = await Promise.all(probes.map((probe) => engine.probe(probe)));
    channel.send({ sent });
    const expected = this.#sizesOf(await channel.receive('probes'), 'sent');
    const arrived = await waitForProbes(
      engine,
      probes,
      sent.map((bytes, rail) => Math.min(bytes, expected[rail]!)),
    );
    channel.send({ arrived });
    const reached = this.#sizesOf(await channel.receive('count of probes'), 'arrived');
    const sizes = sent.map((bytes, rail) => Math.floor(Math.min(bytes, arrived[rail]!, reached[rail]!) / 8) * 8);
    const passing = sizes.filter((bytes) => bytes >= MIN_PACKET_BYTES);
    if (passing.length > 0) return Math.min(...passing);
    const { local, remote } = this.rails[0] as RailPair;
    throw new WeftlineError(
      'WL_TIMEOUT',
      `Packets do not pass between the RDMA ports ${local} of this host and ${remote} of ${channel.peer}, though TCP does: a firewall may drop UDP port 4791, or the networks of the two ports are not joined (of ${expected[0]} bytes at most, ${arrived[0]} arrived here and ${reached[0]} there)`,
      { details: { local, remote, peer: channel.peer, arrived: arrived[0], reached: reached[0] } },
    );
  }

  endpoint(lane: number): PathEndpoint {
    this.#given.add(lane);
    return { ends: (this.#made[lane] as MadeEnds).ends, rails: this.rails.length, segments: 1 };
  }

  /** One per rail. */
  #sizesOf(frame: ControlFrame, field: string): readonly number[] {
    const sizes = frame[field];
    const areGood = Array.isArray(sizes) && sizes.length === this.rails.length;
    if (areGood) return sizes.map((size) => integerField({ size }, 'size', MAX_PACKET_BYTES));
    throw protocolError(`a greeting whose ${field} does not say ${this.rails.length} sizes`);
  }

  [Symbol.dispose](): void {
    for (const [lane, made] of this.#made.entries()) {
      if (!this.#given.has(lane)) closeLater(this.#engines[lane] as EngineEnds, made);
    }
  }
}

/** An engine that has ended has closed them. */
function closeLater(engine: EngineEnds, { ends }: MadeEnds): void {
  void engine.close(ends).catch(() => {});
}

async function waitForProbes(
  engine: EngineEnds,
  probes: readonly EndsProbe[],
  expected: readonly number[],
): Promise<readonly number[]> {
  const end = performance.now() + PROBE_PATIENCE_MS;
  for (;;) {
    const arrived = await Promise.all(probes.map((probe) => engine.probed(probe)));
    if (arrived.every((bytes, rail) => bytes >= expected[rail]!) || performance.now() >= end) return arrived;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/** What the peer says of each lane. Fails with WL_PROTOCOL. */
function lanesOf(frame: ControlFrame): readonly unknown[] {
  const { lanes } = frame;
  if (Array.isArray(lanes) && lanes.length >= 1 && lanes.length <= MAX_ENGINES) return lanes;
  throw protocolError('a greeting without queue pairs');
}

/** An address as eight groups of four digits. */
function grouped(gid: string): string {
  return gid.replaceAll(/(.{4})(?=.)/g, '$1:');
}
