// A process with every listener there is. Argument: its token, or nothing. Tells its parent where they are.
import { listenAtAll } from './targets.ts';
import { encodeError } from '#lib/core/errors.js';

try {
  process.send?.({ targets: await listenAtAll(process.argv[2] ?? '') });
} catch (error) {
  process.send?.({ error: encodeError(error) });
}
process.on('disconnect', () => process.exit(0));
