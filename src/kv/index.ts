// weftline/kv: blocks of KV caches for readers of other processes: a miss, never a wrong hit.
export { type KvMemory, type KvPart, vllmParts, type VllmShape } from './kv-memory.ts';
export { type KvLease, type KvMissReason, kvMissReasons, KvReader, type KvResult } from './kv-reader.ts';
export { KvStore, type KvStoreOptions } from './kv-store.ts';
export type { KvTicket } from './kv-ticket.ts';
