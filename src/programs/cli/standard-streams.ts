// What happens when nobody reads what a command writes, or when it cannot be written: no stack trace, and the right exit code.
import { printTo } from '../../core/print.ts';
import { exitCodes } from './exit-codes.ts';

/**
 * To be called once, before anything is written. Output into a closed pipe (`weftline doctor | head -1`) is discarded, as
 * the reader has what it wanted: the command goes on, and its exit code is that of its work. Any other failure of stdout,
 * such as a full disk, is printed once, and the command ends with a failure even if its work succeeds.
 */
export function guardStandardStreams(): void {
  let isReported = false;
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE' || error.code === 'ERR_STREAM_DESTROYED' || isReported) return;
    isReported = true;
    printTo(process.stderr, `weftline: WL_FILE: Cannot write to stdout: ${error.message}\n`);
    process.once('exit', (code) => {
      if (code === exitCodes.success.code) process.exitCode = exitCodes.failure.code;
    });
  });
  // If stderr cannot be written to, the failure cannot be reported.
  process.stderr.on('error', () => {});
}
