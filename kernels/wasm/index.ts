// The CPU kernels: everything exported here is one WASM module over one shared memory.
export * from './layout';
export * from './receive-plan';
export * from './rows';
export * from './host-rows';
export * from './sum';
export * from './mixed-sum';
export * from './reduce';
export * from './block-bitmap';
export * from './fp8';
export * from './low-latency';
export * from './matmul';
export * from './swiglu';
export * from './weighted-rows';
export * from './crc32c';
export * from './packet-tag';
export * from './fragments';
export * from './fragment-check';
