// Adds one to the last byte of shared memory that another process named.
import { SharedMemory, type SharedMemoryName } from '#lib/windows/shared-memory.js';

using memory = SharedMemory.open(JSON.parse(process.argv[2] as string) as SharedMemoryName, 'the test');
const bytes = new Uint8Array(memory.buffer());
(bytes[bytes.length - 1] as number) += 1;
