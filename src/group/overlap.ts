// How a call fits between other work of a device: what it begins after, and whether others wait for it by themselves.
import { type OptionNames, requireFlag } from '../core/check-options.ts';
import { waitOptionNames, type WaitOptions } from '../core/deadline.ts';
import { invalidArgument } from '../core/errors.ts';
import { type DeviceEvent, passedEvent } from '../device/device.ts';

/** How long a call may take, and how it is ordered with other work of a GPU. */
export interface CallOptions extends WaitOptions {
  /**
   * The call's device work begins after this event instead of after everything enqueued on the device's stream so far,
   * and runs on a stream of its object, which has priority. What still reads or writes the object's window (received
   * rows, the input of combine) must come before the event. On the CPU the call waits for the event.
   */
  readonly previousEvent?: DeviceEvent | undefined;
  /**
   * What is enqueued later on the device's stream does not wait for the call. Its result has an `event` for that:
   * `device.stream.waitFor(event)`, or `await event.wait()`; before it, neither inputs nor results may be touched.
   */
  readonly asyncFinish?: boolean | undefined;
}

/** The order alone. */
export type OverlapOptions = Omit<CallOptions, keyof WaitOptions>;

export const callOptionNames: OptionNames<CallOptions> = {
  ...waitOptionNames,
  previousEvent: true,
  asyncFinish: true,
};

/** Fails with WL_INVALID_ARGUMENT for a `previousEvent` that is no event, or an `asyncFinish` that is no flag. Which events a device can wait for, it says itself. */
export function checkOverlap({ previousEvent, asyncFinish }: OverlapOptions): void {
  requireFlag('asyncFinish', asyncFinish);
  if (previousEvent === undefined) return;
  const event: Partial<DeviceEvent> = previousEvent ?? {};
  if (typeof event.isDone === 'function' && typeof event.wait === 'function') return;
  throw invalidArgument('previousEvent', previousEvent, 'an event of device.createEvent(), or of an earlier call');
}

/** The event of a call whose work is done when it returns. */
export function eventAtOnce({ asyncFinish = false }: OverlapOptions): DeviceEvent | undefined {
  return asyncFinish ? passedEvent : undefined;
}
