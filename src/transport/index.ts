// weftline/transport: reliable messages, writes and reads between processes over many UDP paths.
export { Connection } from './host/connection.ts';
export type {
  LocalPart,
  RangesPart,
  RemotePart,
  SharedRangesNames,
  SignalPart,
  WriteOptions,
} from './host/memory-region.ts';
export type { RailState } from './host/connection.ts';
export type { RailPair } from './io/packet-io-kind.ts';
export type { HostStatistics, LaneStatistics } from './host/host-calls.ts';
export type { MemoryRegion, RegisteredMemory } from './host/memory-region.ts';
export type { RequestHandle, RequestState } from './host/request-slots.ts';
export type { Address } from '../meeting/dial.ts';
export {
  type TransportConnectOptions,
  Transport,
  type TransportListenOptions,
  type TransportOptions,
} from './host/transport.ts';
export type { IncomingConnection } from './host/greeting.ts';
export { TransportListener } from './host/transport-listener.ts';
