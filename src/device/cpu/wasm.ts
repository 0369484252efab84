// The part of the WebAssembly API that is used here, typed; the ES library of TypeScript does not declare it.

export interface WasmMemory {
  readonly buffer: SharedArrayBuffer;
  grow(pages: number): number;
}

interface WasmApi {
  readonly Memory: new (options: { initial: number; maximum: number; shared: true }) => WasmMemory;
  validate(bytes: Uint8Array): boolean;
  compile(bytes: Uint8Array): Promise<object>;
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object, imports: { env: { memory: WasmMemory } }) => { readonly exports: object };
  instantiate(module: object, imports: { env: { memory: WasmMemory } }): Promise<{ readonly exports: object }>;
}

export const wasm: WasmApi = (globalThis as object as { WebAssembly: WasmApi }).WebAssembly;
