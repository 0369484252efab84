// A reporter for node's test runner: each result as one line of JSON, for the host that reads the guest's output.
import type { TestEvent } from 'node:test/reporters';

export const LINE_MARK = 'guest-test ';

export interface GuestResult {
  readonly name: string;
  readonly isPass: boolean;
  readonly milliseconds: number;
  readonly skip?: string;
  readonly error?: string;
}

export default async function* lines(source: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  for await (const { type, data } of source) {
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    const { name, skip } = data;
    const error = type === 'test:fail' ? (data.details.error.cause ?? data.details.error) : undefined;
    const result: GuestResult = {
      name,
      isPass: type === 'test:pass',
      milliseconds: Math.round(data.details.duration_ms),
      ...(skip === undefined || skip === false ? {} : { skip: String(skip) }),
      ...(error === undefined ? {} : { error: error instanceof Error ? String(error.stack) : String(error) }),
    };
    yield `${LINE_MARK}${JSON.stringify(result)}\n`;
  }
}
