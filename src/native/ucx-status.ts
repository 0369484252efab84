// What UCX's status codes mean, as errors.
import { ucsStatus } from '../abi/ucx-structs.ts';
import { WeftlineError } from '../core/errors.ts';

/** Those that weftline has met or expects; ucs_status_string has the others. */
const names: Readonly<Record<number, string>> = {
  [-1]: 'UCS_ERR_NO_MESSAGE',
  [-2]: 'UCS_ERR_NO_RESOURCE',
  [-3]: 'UCS_ERR_IO_ERROR',
  [-4]: 'UCS_ERR_NO_MEMORY',
  [-5]: 'UCS_ERR_INVALID_PARAM',
  [-6]: 'UCS_ERR_UNREACHABLE',
  [-8]: 'UCS_ERR_NOT_IMPLEMENTED',
  [-9]: 'UCS_ERR_MESSAGE_TRUNCATED',
  [-12]: 'UCS_ERR_NO_ELEM',
  [-15]: 'UCS_ERR_BUSY',
  [-17]: 'UCS_ERR_SHMEM_SEGMENT',
  [-16]: 'UCS_ERR_CANCELED',
  [-20]: 'UCS_ERR_TIMED_OUT',
  [-22]: 'UCS_ERR_UNSUPPORTED',
  [-23]: 'UCS_ERR_REJECTED',
  [-24]: 'UCS_ERR_NOT_CONNECTED',
  [-25]: 'UCS_ERR_CONNECTION_RESET',
  [-80]: 'UCS_ERR_ENDPOINT_TIMEOUT',
};

export function ucxStatusName(status: number): string {
  return names[status] ?? `status ${status}`;
}

/** `what` was being done. */
export function ucxError(call: string, status: number, what: string): WeftlineError {
  const name = ucxStatusName(status);
  return new WeftlineError('WL_NATIVE', `${call} failed with ${name}: ${what}`, { details: { call, status, name } });
}

/** True if a pointer status is an error, false if it is a request or 0. */
export function isErrorPointer(pointer: number): boolean {
  return pointer < 0 && pointer >= ucsStatus.last;
}
