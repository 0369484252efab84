// What the user's side asks the thread of the engine to do now and then, and what that tells unasked. Plain data, so that
// it can cross threads.
import { type EncodedError, WeftlineError } from '../../core/errors.ts';
import type { Calls } from '../../threads/worker-link.ts';
import type { PacketKeys } from '../authentication/packet-guard.ts';
import type { RemoteAccess, RegionName } from '../engine/region.ts';
import type { ConnectionStatistics, DropCounters } from '../engine/transport-engine.ts';

import type { EndMaker, EndsJoin, EndsPlan, EndsProbe, MadeEnds, PathEndpoint } from '../io/packet-io-kind.ts';
import type { LinePlan, TransferPlan } from './prepared-transfers.ts';
import type { RangesPlan } from './engine-channels.ts';

/** The EndMaker of the engine's loop. */
interface EndCalls {
  openEnds(plan: EndsPlan): MadeEnds;
  connectEnds(join: EndsJoin): void;
  probeEnds(probe: EndsProbe): number;
  probedEnds(probe: EndsProbe): number;
  closeEnds(ends: readonly number[]): void;
}

export interface HostCalls extends Calls, EndCalls {
  /** A number for a connection to be; and it is not needed after all. */
  reserve(): number;
  unreserve(localId: number): void;
  /** Returns the engine's number of the connection. */
  connect(options: HostConnection): number;
  register(options: HostRegion): RegionName;
  /** False while a device may still read it: then it is to be called again. */
  release(region: number): boolean;
  /** Returns the number of the transfer. */
  prepare(plan: TransferPlan): number;
  /** Returns the number of the line. */
  openLine(plan: LinePlan): number;
  unprepare(transfer: number): void;
  /** Returns the number of the table. */
  shareRanges(plan: RangesPlan): number;
  unshareRanges(table: number): void;
  /** What a channel has under way is withdrawn; its state tells when all of it has ended. */
  closeChannel(channel: number): void;
  /** Ends a connection; its pending requests fail with the error. */
  end(end: HostEnd): void;
  statistics(connection: number): LaneStatistics;
}

interface HostEnd {
  readonly connection: number;
  readonly error: EncodedError;
}

export interface HostConnection {
  readonly localId: number;
  readonly remoteId: number;
  readonly peerName: string;
  readonly secret: bigint;
  readonly packetKeys: PacketKeys | undefined;
  readonly receiverCredits: boolean;
  readonly eagerBytes: number;
  readonly segmentBytes: number;
  readonly keepsPlaces: boolean;
  /** The host closes it. */
  readonly endpoint: PathEndpoint;
}

export interface HostRegion {
  /** Address of memory that stays until the region is released. */
  readonly address: number;
  readonly bytes: number;
  readonly remote: Partial<RemoteAccess>;
  /** That of the first engine, so that a region has the same on all. */
  readonly name?: RegionName | undefined;
}

/** Counts of a connection on one engine, and of that engine, since they were made. */
export interface LaneStatistics {
  readonly connection: ConnectionStatistics;
  readonly drops: DropCounters;
  readonly failures: Readonly<Record<string, number>>;
}

/** The sums over the engines of a connection, with the paths of all of them, and each by itself. */
export interface HostStatistics extends LaneStatistics {
  /** One entry per engine that the connection uses (lane). */
  readonly lanes: readonly LaneStatistics[];
}

/** What the host tells without being asked. */
export type HostEvent =
  /** Sent before the table shows that the request failed. */
  | { readonly event: 'failed'; readonly slot: number; readonly error: EncodedError }
  /** Sent before the state of the channel shows that it failed. */
  | { readonly event: 'channel'; readonly channel: number; readonly error: EncodedError }
  /** A path of this engine has died, at that time in ms, or answers again: 0. */
  | { readonly event: 'path'; readonly connection: number; readonly path: number; readonly deadSince: number }
  | { readonly event: 'ended'; readonly connection: number; readonly error: EncodedError };

/** The answers of the engine's thread. `loop` is asked at the first call. */
export function endCalls(loop: () => { readonly ends?: EndMaker }): EndCalls {
  const maker = (): EndMaker => {
    const { ends } = loop();
    if (ends === undefined) throw new WeftlineError('WL_INTERNAL', 'This engine makes no ends of paths');
    return ends;
  };
  return {
    openEnds: (plan) => maker().open(plan),
    connectEnds: (join) => maker().connect(join),
    probeEnds: (probe) => maker().probe(probe),
    probedEnds: (probe) => maker().probed(probe),
    closeEnds: (ends) => maker().close(ends),
  };
}
