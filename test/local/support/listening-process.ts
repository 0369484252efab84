// A process with a transport that listens. Prints its port; for each line of its input, how many descriptors it holds.
import { readdirSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { Transport } from 'weftline/transport';

await using transport = await Transport.create({ token: 'secret' });
using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
console.log(listener.port);
for await (const line of createInterface({ input: process.stdin })) {
  console.log(line + String(readdirSync('/proc/self/fd').length));
}
