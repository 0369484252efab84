// The part of the WebAssembly API that is used here, typed; the ES library of TypeScript does not declare it.
// What helps where the system refuses address space for the memory of the CPU kernels.

/** As the option of node, or in the environment of ranks. */
const WITHOUT_GUARD = 'NODE_OPTIONS=--disable-wasm-trap-handler';

/**
 * With the trap handler, which is on by default, V8 reserves as much for a memory of any size as for the largest: asking for
 * less helps only without it. As the end of a sentence.
 * @param setting How less is asked for, such as "WEFTLINE_ADDRESS_SPACE_MIB=1024".
 * @param isSmallGranted Whether the system grants the smallest memory.
 */
export function addressSpaceAdvice(setting: string, isSmallGranted: boolean): string {
  if (isSmallGranted) return `raise "ulimit -v", or set ${setting}`;
  return `raise "ulimit -v" (16 GiB for each rank are enough), or set ${WITHOUT_GUARD}, without which Node reserves some 10 GiB for a memory of any size; if that is refused as well, set ${setting} too`;
}

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
