// A folder that goes when its scope ends.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export class TemporaryFolder implements Disposable {
  readonly path: string = mkdtempSync(join(tmpdir(), 'weftline-test-'));

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}
