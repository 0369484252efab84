// Run by the build: writes what kernels share with the host, as a CUDA header and as an AssemblyScript module.
import { writeFileSync } from 'node:fs';
import { assemblyScriptModule } from './assembly-script.ts';
import { cudaHeader } from './cuda-header.ts';

const [header, module] = process.argv.slice(2);
if (header === undefined || module === undefined) throw new Error('usage: node dist/abi/emit.js HEADER MODULE');
writeFileSync(header, cudaHeader());
writeFileSync(module, assemblyScriptModule());
