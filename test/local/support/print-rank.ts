// Prints pieces of lines with pauses between them, so that lines of several ranks would mix if nobody kept them apart.
import { setTimeout as sleep } from 'node:timers/promises';

const rank = process.env['WEFTLINE_RANK'] ?? '';
for (let line = 0; line < 20; line += 1) {
  for (let word = 0; word < 5; word += 1) {
    process.stdout.write(`${rank}.${line} `);
    if (line % 7 === 0) await sleep(2);
  }
  process.stdout.write('\n');
}
process.stderr.write(`error of ${rank}\n`);
process.stdout.write(`last of ${rank} ü`);
