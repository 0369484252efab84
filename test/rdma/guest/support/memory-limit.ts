// A process with a small limit of locked memory: registers more, and prints the error.
import { WeftlineError } from '#lib/core/errors.js';
import { NativeBlock } from '#lib/native/native-block.js';
import { VerbsContext } from '#lib/native/verbs/context.js';
import { MemoryRegion } from '#lib/native/verbs/memory-region.js';
import { ProtectionDomain } from '#lib/native/verbs/protection-domain.js';

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
