// The next message of a child process; fails when the process ends instead.
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';

export async function nextMessage<T>(child: ChildProcess): Promise<T> {
  const settled = new AbortController();
  const { signal } = settled;
  const answer = once(child, 'message', { signal });
  const lost = once(child, 'exit', { signal }).then(() => assert.fail('the child process ended'));
  for (const end of [answer, lost]) end.catch(() => {});
  const [message] = (await Promise.race([answer, lost])) as [T];
  settled.abort();
  return message;
}
