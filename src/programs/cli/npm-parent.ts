// Signals that are sent to npx or npm: these end their shell with them, and what runs in the shell hears nothing.

const LOOK_EVERY_MS = 250;

/** If npm has started this process: ends it as SIGTERM does, once the shell between them has gone. */
export function endWithNpm(): void {
  if (process.env['npm_lifecycle_event'] === undefined) return;
  const parent = process.ppid;
  const timer = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(timer);
    process.kill(process.pid, 'SIGTERM');
  }, LOOK_EVERY_MS);
  timer.unref();
}
