// A process with a small limit of locked memory: registers more, and prints the error.
import { WeftlineError } from '#lib/core/errors.js';
import { NativeBlock } from '#lib/native/library.js';
import { ProtectionDomain, VerbsContext } from '#lib/native/verbs/context.js';
import { MemoryRegion } from '#lib/native/verbs/memory-region.js';

const BYTES = 4 << 20;

using context = VerbsContext.open('rxe0');
const domain = new ProtectionDomain(context);
const memory = new NativeBlock(BYTES);
try {
  MemoryRegion.host(domain, memory.address, BYTES);
  console.log('registered');
} catch (error) {
  console.log(error instanceof WeftlineError ? `${error.code} ${error.message}` : String(error));
}
