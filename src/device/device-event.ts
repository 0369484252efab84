// A point in a device's work that the host, or other work of the device, can wait for.
/** What ends a wait for work of a device early. */
export interface DeviceWaitOptions {
  /** The setting `timeoutMs` by default. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

/** A point in the work of a device that the host, or another stream, can wait for. */
export interface DeviceEvent extends Disposable {
  /** True when the work before it is done. Does not wait. */
  isDone(): boolean;
  /** Resolves when the work before it is done. Fails with WL_TIMEOUT, the signal's reason, or what that work failed with. */
  wait(options?: DeviceWaitOptions): Promise<void>;
}

/** Of a device whose work is done when the call returns. */
export const passedEvent: DeviceEvent = {
  isDone: () => true,
  wait: () => Promise.resolve(),
  [Symbol.dispose]: () => {},
};
