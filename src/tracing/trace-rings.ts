// The rings of this process in a file that all its threads map: what they have written is there however the process ends.
import { randomBytes } from 'node:crypto';
import { closeSync, constants, ftruncateSync, lstatSync, openSync, rmSync } from 'node:fs';
import {
  TRACE_FILE_BYTES,
  TRACE_HEAD_BYTES,
  TRACE_MAGIC,
  TRACE_TEXT_BYTES,
  TRACE_VERSION,
  traceHead,
} from './trace-layout.ts';
import { Block } from '../abi/layout.ts';
import { viewAt } from '../native/library.ts';
import { WeftlineError } from '../core/errors.ts';
import { openGuarded } from '../core/guarded-file.ts';
import { holdFile, isHeldFile } from '../native/held-file.ts';
import { mapSharedFile, reserveInFile } from '../native/memory-file.ts';
import { partPath } from './trace-parts.ts';

export interface TracedProcess {
  readonly pid: number;
  /** -1 of a process that is no rank. */
  readonly rank: number;
  readonly size: number;
  readonly host: string;
  readonly program: string;
  /** 0 without weftline's launcher. */
  readonly launcher: number;
}

/** As all threads of the process know it. */
export interface TraceFile {
  readonly path: string;
  /** Where it is mapped. */
  readonly address: number;
}

/** The part of this process for the trace that goes to `file`. Fails as createTraceFile() does. */
export function createPart(file: string, process: TracedProcess): TraceFile {
  const { host, pid } = process;
  const path = partPath(file, host, pid);
  try {
    return createTraceFile(path, process);
  } catch (error) {
    // Of a process with the same number in another container; or anybody put it there, as the name can be guessed.
    const isTaken = lstatSync(path, { throwIfNoEntry: false }) !== undefined;
    if (!isTaken) throw error;
  }
  return createTraceFile(partPath(file, host, pid, randomBytes(8).toString('hex')), process);
}

/** Makes the file, sparse, and maps it. Fails with the error of the file system, with WL_NATIVE, WL_FILE if it is full. */
export function createTraceFile(path: string, process: TracedProcess): TraceFile {
  if (isHeldFile(path))
    throw new WeftlineError('WL_FILE', 'another process with the same number and host name uses it');
  // Of a process that had this number, and has ended.
  rmSync(path, { force: true });
  const fd = openSync(path, 'wx+', 0o600);
  try {
    // The mapping keeps the lock.
    holdFile(fd);
    ftruncateSync(fd, TRACE_FILE_BYTES);
    if (!reserveInFile(fd, 0, TRACE_HEAD_BYTES)) throw new WeftlineError('WL_FILE', 'its file system is full');
    const address = mapSharedFile(fd, TRACE_FILE_BYTES, false);
    const head = new Block(traceHead, viewAt(address, traceHead.size), 0);
    head.set('version', TRACE_VERSION);
    head.set('pid', process.pid);
    setText(head, 'host', process.host);
    setText(head, 'program', process.program);
    head.set('launcher', process.launcher);
    describeRank({ path, address }, process.rank, process.size);
    head.set('magic', TRACE_MAGIC);
    return { path, address };
  } catch (error) {
    rmSync(path, { force: true });
    throw error;
  } finally {
    closeSync(fd);
  }
}

/** A process learns its rank when it joins its job. */
export function describeRank({ address }: TraceFile, rank: number, size: number): void {
  const head = new Block(traceHead, viewAt(address, traceHead.size), 0);
  head.set('rank', rank);
  head.set('size', size);
}

/** Room for a part of the file: a write to a mapped page without room on the disk would end the process. False if there is none. */
export function reserve(path: string, offset: number, bytes: number): boolean {
  const fd = openGuarded(path, { owner: 'user', flags: constants.O_RDWR });
  try {
    return reserveInFile(fd, offset, bytes);
  } finally {
    closeSync(fd);
  }
}

/** As far as there is room. */
export function setText<Name extends string>(block: Block<Name>, field: Name, text: string): void {
  const bytes = Buffer.from(text).subarray(0, TRACE_TEXT_BYTES - 1);
  for (const [index, byte] of bytes.entries()) block.set(field, byte, index);
}
