// One operation of a scenario while it runs: its ends, its memory, and the requests that carry it out.
import { longestScattered } from '../../transport/engine/check-options.ts';
import { RangeList } from '../../transport/send/range-list.ts';
import type { RemoteRange } from '../../transport/engine/transport-engine.ts';
import type { LaneConnection } from './lane-connection.ts';
import type { ScenarioOperation, Scenario } from './scenario.ts';
import { type BufferRange, bytesOf, fillContent, type ScenarioBuffers } from './scenario-buffers.ts';

export interface RunningOperation {
  /** Its number in the scenario, which also determines its content. */
  readonly index: number;
  readonly operation: ScenarioOperation;
  /** The hosts that begin it and answer it, and their ends of the connection. */
  readonly near: number;
  readonly far: number;
  readonly nearEnd: LaneConnection;
  readonly farEnd: LaneConnection;
  /** Where the bytes come from and where they go; of a signal, the counter; none of a flush. */
  readonly source: BufferRange | undefined;
  readonly target: BufferRange | undefined;
  /** The bytes lie in the target, and the target has been checked. */
  arrived: boolean;
  /** One of its ends was withdrawn. */
  cancelled: boolean;
}

/** What a request is to its operation. */
export type Role = 'send' | 'receive' | 'write' | 'read' | 'signal' | 'flush';

/** Bytes that operation and answer need on a host, all together. */
export function memoryOf(operation: ScenarioOperation): number {
  if (operation.kind === 'message') return operation.bytes + operation.room;
  return 'bytes' in operation ? 2 * operation.bytes : 8;
}

/** The operation asks for what may not be done. */
export function mustFail(operation: ScenarioOperation): boolean {
  if (operation.kind === 'message') return operation.room < operation.bytes;
  return 'badKey' in operation && operation.badKey;
}

export interface OperationPlan {
  readonly scenario: Scenario;
  readonly ends: readonly (readonly [LaneConnection, LaneConnection])[];
  /** Of each host. */
  readonly buffers: readonly ScenarioBuffers[];
  /** Takes the counter of a flow. */
  readonly counter: (operation: ScenarioOperation, buffers: ScenarioBuffers) => BufferRange;
}

export function prepareOperation({ scenario, ends, buffers, counter }: OperationPlan, index: number): RunningOperation {
  const operation = scenario.operations[index] as ScenarioOperation;
  const [a, b] = scenario.connections[operation.connection] as readonly [number, number];
  const pair = ends[operation.connection] as readonly [LaneConnection, LaneConnection];
  const [near, far] = operation.from === 0 ? [a, b] : [b, a];
  const [nearEnd, farEnd] = operation.from === 0 ? pair : [pair[1], pair[0]];
  const [here, there] = [buffers[near] as ScenarioBuffers, buffers[far] as ScenarioBuffers];
  const base = { index, operation, near, far, nearEnd, farEnd, arrived: false, cancelled: false };
  switch (operation.kind) {
    case 'message':
      return { ...base, source: here.take(operation.bytes), target: there.take(operation.room) };
    case 'write':
      return { ...base, source: here.take(operation.bytes), target: there.take(operation.bytes) };
    case 'read':
      return { ...base, source: there.take(operation.bytes), target: here.take(operation.bytes) };
    case 'signal':
      return { ...base, source: undefined, target: counter(operation, there) };
    case 'flush':
    default:
      return { ...base, source: undefined, target: undefined };
  }
}

/** Fills the source and posts the request of the near end. */
export function beginOperation(running: RunningOperation): { readonly role: Role; readonly handle: number } {
  const { index, operation, nearEnd } = running;
  const { flow } = operation;
  const source = running.source as BufferRange;
  const target = running.target as BufferRange;
  if (source !== undefined) fillContent(source, index);
  switch (operation.kind) {
    case 'message':
      return { role: 'send', handle: nearEnd.postSend({ ...source, flow }) };
    case 'write':
      return { role: 'write', handle: write(running, source, target) };
    case 'read':
      return { role: 'read', handle: nearEnd.read({ ...target, ...remote(source, operation.badKey), flow }) };
    case 'signal':
      return { role: 'signal', handle: nearEnd.signal({ ...remote(target, false), add: operation.add, flow }) };
    case 'flush':
    default:
      return { role: 'flush', handle: nearEnd.flush(flow) };
  }
}

/** As one range, or, every other one, as many small ones, the last one first. */
function write({ index, operation, nearEnd }: RunningOperation, source: BufferRange, target: BufferRange): number {
  const { flow } = operation;
  const place = remote(target, 'badKey' in operation && operation.badKey);
  const { bytes } = source;
  if (index % 2 === 0 || bytes === 0) return nearEnd.write({ ...source, ...place, flow });
  const longest = longestScattered(nearEnd.payloadBytes);
  const length = 1 + ((index * 37) % Math.min(longest, bytes));
  const count = Math.ceil(bytes / length);
  const starts = Float64Array.from({ length: count }, (_, at) => (count - 1 - at) * length);
  const ranges = new RangeList({
    sources: starts.map((start) => source.offset + start),
    targets: starts.map((start) => target.offset + start),
    lengths: starts.map((start) => Math.min(length, bytes - start)),
  });
  const { remoteRegion, remoteKey } = place;
  return nearEnd.scatter({ region: source.region, ranges, remoteRegion, remoteKey, flow });
}

/** Posts the request of the far end of a message. */
export function postReceive({ operation, farEnd, target }: RunningOperation): number {
  return farEnd.postReceive({ ...(target as BufferRange), flow: operation.flow });
}

/** What a counter holds. */
export function counterValue(cell: BufferRange): number {
  const { buffer, byteOffset } = bytesOf(cell);
  return Number(new DataView(buffer, byteOffset, 8).getBigUint64(0, true));
}

/** For error messages. */
export function nameOf({ index, operation, near, far }: RunningOperation): string {
  const bytes = 'bytes' in operation ? ` of ${operation.bytes} bytes` : '';
  return `operation ${index} (${operation.kind}${bytes}, host ${near} to ${far}, flow ${operation.flow})`;
}

function remote({ region, offset }: BufferRange, badKey: boolean): RemoteRange {
  return { remoteRegion: region.id, remoteKey: badKey ? (region.key ^ 1) >>> 0 : region.key, remoteOffset: offset };
}
