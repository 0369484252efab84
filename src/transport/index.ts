// weftline/transport: reliable messages, writes and reads between processes over many UDP paths.
export { Connection, type RailState } from './host/connection.ts';
export type { LocalPart, MemoryRegion, RemotePart, SignalPart } from './host/memory-region.ts';
export type { RequestHandle } from './host/request-slots.ts';
export type { Address } from '../meeting/dial.ts';
export {
  Transport,
  type TransportConnectOptions,
  type TransportListenOptions,
  type TransportOptions,
} from './host/transport.ts';
export type { IncomingConnection } from './host/greeting.ts';
export { TransportListener } from './host/transport-listener.ts';
