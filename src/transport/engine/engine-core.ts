// What the parts of an engine share.
import type { AckSample } from '../../congestion/congestion.ts';
import type { WeftlineError } from '../../core/errors.ts';
import type { TagMemory } from '../authentication/packet-guard.ts';
import type { PlacementRun } from '../io/packet-io.ts';
import type { Admission } from '../receive/admission.ts';
import type { CreditPacer } from '../send/receiver-credits.ts';
import type { PacketOutbox } from '../wire/packet-outbox.ts';
import type { RegionTable } from './region.ts';
import type { Request, RequestTable } from './request.ts';
import type { DropReason, TransportConnection } from './transport-engine.ts';
import type { TransportSettings } from './transport-settings.ts';

export interface EngineCore {
  readonly settings: TransportSettings;
  readonly outbox: PacketOutbox;
  readonly requests: RequestTable;
  readonly regions: RegionTable;
  /** Keys of connections whose packets are authenticated; made when first asked for. */
  readonly tagMemory: TagMemory;
  readonly admission: Admission;
  /** Gives credits to the peers whose connections have agreed on them. */
  readonly credits: CreditPacer;
  /** [0, 1), from the engine's seed. */
  readonly random: () => number;
  /** Objects that are filled in again and again. */
  readonly template: DataTemplate;
  readonly sample: AckSample;
  readonly placement: PlacementRun;
  /** The time of the latest call. */
  readonly now: number;
  readonly drops: Record<DropReason, number>;
  /** `onTimer` has something to do. */
  wake(): void;
  /** The request has done what was asked. */
  done(request: Request): void;
  /** The request has failed; it leaves all queues. */
  fail(request: Request, error: WeftlineError): void;
  /** Cells of this side have changed. */
  signalled(): void;
  /** A path of the connection is taken for dead, or has answered again. */
  pathChanged(connection: TransportConnection, path: number, isAlive: boolean): void;
  /** A connection has failed, or the peer has ended it. */
  connectionEnded(connection: TransportConnection, error: WeftlineError): void;
}

/** What the headers of a burst are written from: what they have in common, and their first values. One object per engine. */
export type DataTemplate = ReturnType<typeof createDataTemplate>;

export function createDataTemplate() {
  return {
    count: 0,
    flags: 0,
    /** Flags of the last packet besides. */
    lastFlags: 0,
    path: 0,
    sequence: 0,
    pathSequence: 0,
    target: 0,
    targetKey: 0,
    offset: 0,
    messageBytes: 0,
    base: 0,
    payloadBytes: 0,
    lastPayloadBytes: 0,
  };
}
