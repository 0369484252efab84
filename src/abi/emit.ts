// Run by the build: writes the CUDA header of all layouts to the path that is given.
import { writeFileSync } from 'node:fs';
import { cudaHeader } from './cuda-header.ts';

const [path] = process.argv.slice(2);
if (path === undefined) throw new Error('usage: node dist/abi/emit.js PATH');
writeFileSync(path, cudaHeader());
