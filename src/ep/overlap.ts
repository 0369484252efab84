// How a call fits between other work of a device: what it begins after, and whether others wait for it by themselves.
import type { DeviceEvent } from '../device/device-event.ts';

export interface OverlapOptions {
  /**
   * The call's device work begins after this event instead of after everything enqueued on the device's stream so far,
   * and runs on the buffer's own stream, which has priority. On the CPU the call waits for the event.
   */
  readonly previousEvent?: DeviceEvent;
  /**
   * What is enqueued later on the device's stream does not wait for the call. Its result has an `event` for that:
   * `device.stream.waitFor(event)`, or `await event.wait()`; before it, neither inputs nor results may be touched.
   */
  readonly asyncFinish?: boolean;
}
