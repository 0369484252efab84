// The rings of this process in a file that all its threads map: what they have written is there however the process ends.
import { closeSync, ftruncateSync, openSync } from 'node:fs';
import { TRACE_FILE_BYTES, TRACE_MAGIC, TRACE_TEXT_BYTES, TRACE_VERSION, traceHead } from '../abi/trace-rings.ts';
import { Block } from '../abi/layout.ts';
import { viewAt } from '../native/library.ts';
import { mapSharedFile } from '../native/memory-file.ts';

export interface TracedProcess {
  readonly pid: number;
  /** -1 of a process that is no rank. */
  readonly rank: number;
  readonly size: number;
  readonly host: string;
  readonly program: string;
}

/** Makes the file, sparse, and maps it; returns the address. Fails with the error of the file system, or WL_NATIVE. */
export function createTraceFile(path: string, process: TracedProcess): number {
  const fd = openSync(path, 'wx+', 0o600);
  try {
    ftruncateSync(fd, TRACE_FILE_BYTES);
    const address = mapSharedFile(fd, TRACE_FILE_BYTES, false);
    const head = new Block(traceHead, viewAt(address, traceHead.size), 0);
    head.set('version', TRACE_VERSION);
    head.set('pid', process.pid);
    setText(head, 'host', process.host);
    setText(head, 'program', process.program);
    describeRank(address, process.rank, process.size);
    head.set('magic', TRACE_MAGIC);
    return address;
  } finally {
    closeSync(fd);
  }
}

/** A process learns its rank when it joins its job. */
export function describeRank(address: number, rank: number, size: number): void {
  const head = new Block(traceHead, viewAt(address, traceHead.size), 0);
  head.set('rank', rank);
  head.set('size', size);
}

/** As far as there is room. */
export function setText<Name extends string>(block: Block<Name>, field: Name, text: string): void {
  const bytes = Buffer.from(text).subarray(0, TRACE_TEXT_BYTES - 1);
  for (const [index, byte] of bytes.entries()) block.set(field, byte, index);
}
