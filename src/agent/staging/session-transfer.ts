// A transfer to or from memory that the peer stages: its pieces say where in that memory their bytes belong. Hot path.
import { pieceFragment, pieceHead, pieceKinds } from './wire-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendRegion } from '../backend.ts';
import type { StagedMemory } from './memory-table.ts';
import { PlannedJob, type PlannedJobParts } from './planned-job.ts';
import { dataOffsetOf } from './ring-memory.ts';
import type { PieceWords, SendSession } from './send-session.ts';
import type { RemoteMemoryName } from './staging-messages.ts';

/** A second put costs more than to copy fewer bytes. */
const MIN_FROM_PLACE = 32 << 10;

export interface RemoteStagedMemory {
  readonly number: number;
  readonly key: number;
}

/** Of memory that the peer stages. */
export function stagedName(remote: RemoteMemoryName): RemoteStagedMemory {
  if ('number' in remote) return remote;
  throw new WeftlineError('WL_INTERNAL', 'Host memory of a peer was named on a lane to its staging thread');
}

export class SessionTransfer extends PlannedJob {
  readonly #session: SendSession;
  readonly #remotes: readonly RemoteStagedMemory[];
  readonly #words: PieceWords;

  constructor(parts: PlannedJobParts, session: SendSession, remotes: readonly RemoteStagedMemory[]) {
    super(parts);
    this.#session = session;
    this.#remotes = remotes;
    const kind = parts.operation === 'read' ? pieceKinds.read : pieceKinds.write;
    this.#words = { kind, region: 0, key: 0, fragments: 0, dataOffset: 0, offset: 0, add: 0, sum: -1 };
  }

  fits(): boolean {
    return true;
  }

  open(piece: number, slot: number): number {
    const { plan } = this;
    const first = plan.first[piece]!;
    const count = plan.first[piece + 1]! - first;
    const dataOffset = dataOffsetOf(count);
    const ticket = this.#isSentFromPlace(piece) ? 0 : this.fillSlot(piece, slot, dataOffset);
    if (ticket < 0) return ticket;
    const { number, key } = this.#remotes[plan.remote[first]!] as RemoteStagedMemory;
    const words = this.#words;
    words.region = number;
    words.key = key;
    words.fragments = count;
    words.dataOffset = dataOffset;
    const session = this.#session;
    session.fill(slot, words);
    for (let at = 0; at < count; at++) {
      const fragment = first + at;
      const { remoteOffset, bytes, slotOffset } = plan;
      session.describe(session.placeOf(slot, at), remoteOffset[fragment]!, bytes[fragment]!, slotOffset[fragment]!);
    }
    return ticket;
  }

  send(piece: number, slot: number): boolean {
    const { plan } = this;
    const first = plan.first[piece]!;
    if (this.#isSentFromPlace(piece)) {
      const { region } = this.locals[plan.local[first]!] as StagedMemory;
      return this.#session.sendFrom(slot, region as BackendRegion, plan.localOffset[first]!, plan.bytes[first]!);
    }
    const count = plan.first[piece + 1]! - first;
    const headBytes = pieceHead.size + count * pieceFragment.size;
    return this.#session.send(slot, this.isRead ? headBytes : dataOffsetOf(count) + plan.pieceBytes[piece]!);
  }

  isBack(_piece: number, slot: number): boolean {
    this.#session.check(slot);
    return true;
  }

  isDrained(): boolean {
    return true;
  }

  land(piece: number, slot: number): number {
    const count = this.plan.first[piece + 1]! - this.plan.first[piece]!;
    return this.emptySlot(piece, slot, dataOffsetOf(count));
  }

  /** A write of one large range of memory that the backend reaches. */
  #isSentFromPlace(piece: number): boolean {
    if (this.isRead) return false;
    const { plan } = this;
    const first = plan.first[piece]!;
    const isOne = plan.first[piece + 1]! - first === 1 && plan.bytes[first]! >= MIN_FROM_PLACE;
    return isOne && this.locals[plan.local[first]!]?.region !== undefined;
  }
}
