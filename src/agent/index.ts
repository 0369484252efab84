// weftline/agent: register memory, tell peers of it, read, write and notify.
export { Agent } from './agent.ts';
export type { AgentOptions, LoadOptions, MetadataOptions, PeerOptions, PrepareOptions } from './agent-options.ts';
export type { MemoryKind, TransferOperation, TransferState } from './backend.ts';
export type { BackendName } from './backends/backend-table.ts';
export type { BackendVerdict } from './peer-links.ts';
export { DescriptorList } from './descriptors.ts';
export type { Notification } from './notifications.ts';
export type { RegisterOptions, Registrable, Registration } from './registration.ts';
export type { RemoteMemory } from './remote-agent.ts';
export type { Transfer, TransferTelemetry } from './transfer.ts';
export type { Selection } from './transfer-plan.ts';
export { Endpoint, type EndpointOptions } from './endpoint/endpoint.ts';
export type { EndpointConnection, Operation } from './endpoint/endpoint-connection.ts';
export type { EndpointPart } from './endpoint/mover.ts';
export { etcdMetadataStore } from './exchange/etcd-store.ts';
export {
  exchangeMetadata,
  fetchMetadata,
  type ListenerAddress,
  type ListenOptions,
  loadPublished,
  MetadataListener,
  type MetadataStore,
  publishMetadata,
  sendInvalidation,
  sendMetadata,
  withdrawMetadata,
  worldMetadataStore,
} from './exchange/metadata-exchange.ts';
