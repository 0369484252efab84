// What a command asks of a connection, posted to it.
import { engineCommandKinds } from '../engine-commands.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { Region } from '../engine/region.ts';
import type { EngineHandle, TransportConnection } from '../engine/transport-engine.ts';
import type { EngineCommand } from './command-ring.ts';
import type { SharedRanges } from './shared-ranges.ts';

/** In place of a handle: there is nothing to write. */
export const NOTHING: EngineHandle = -1;

export class CommandPosts {
  readonly #ranges: SharedRanges;
  readonly #findRegion: (id: number) => Region | undefined;
  /** Of the write of ranges that is being posted. */
  readonly #rangesWay: { payloadBytes: number; readonly findRegion: (id: number) => Region | undefined };

  constructor(ranges: SharedRanges, findRegion: (id: number) => Region | undefined) {
    this.#ranges = ranges;
    this.#findRegion = findRegion;
    this.#rangesWay = { payloadBytes: 0, findRegion };
  }

  /** Hot path. Fails as the connection does, and with WL_CLOSED for a region that was released. */
  post(connection: TransportConnection, command: EngineCommand): EngineHandle {
    const { kind, flow, remoteRegion, remoteKey, remoteOffset } = command;
    if (kind === engineCommandKinds.flush) return connection.flush(flow);
    if (kind === engineCommandKinds.signal) {
      return connection.signal({ flow, remoteRegion, remoteKey, remoteOffset, add: command.add });
    }
    if (kind === engineCommandKinds.ranges) {
      this.#rangesWay.payloadBytes = connection.payloadBytes;
      const scatter = this.#ranges.pack(command, this.#rangesWay);
      return scatter === undefined ? NOTHING : connection.scatter(scatter);
    }
    const region = this.#findRegion(command.region);
    if (region === undefined) throw new WeftlineError('WL_CLOSED', 'The region was released');
    const { offset, bytes } = command;
    const whole = command.add === bytes ? undefined : { partOffset: command.partOffset, bytes: command.add };
    if (kind === engineCommandKinds.send) return connection.postSend({ region, offset, bytes, flow, whole });
    if (kind === engineCommandKinds.receive) return connection.postReceive({ region, offset, bytes, flow });
    const range = { region, offset, bytes, flow, remoteRegion, remoteKey, remoteOffset, whole };
    return kind === engineCommandKinds.write ? connection.write(range) : connection.read(range);
  }
}
