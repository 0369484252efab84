// A headless Chromium, driven over pipes: pages of files, as wide and as dark as a test wants them.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';

const PROGRAM = 'chromium';
const DEADLINE_MS = 180_000;
/** Frames that have not come by then are asked for: a browser stops drawing what it thinks nobody sees. */
const FRAMES_MS = 5_000;
const ATTEMPTS = 10;

/** Why there is no browser here; undefined if there is one. */
export function whyNoChromium(): string | undefined {
  const { status } = spawnSync(PROGRAM, ['--version'], { stdio: 'ignore' });
  return status === 0 ? undefined : 'needs Chromium (Debian: chromium)';
}

interface Message {
  readonly id?: number;
  readonly sessionId?: string;
  readonly method?: string;
  readonly params?: Readonly<Record<string, unknown>>;
  readonly result?: Readonly<Record<string, unknown>>;
  readonly error?: { readonly message: string };
}

interface View {
  readonly width: number;
  readonly scheme: 'light' | 'dark';
}

export class Chromium implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly #profile: string;
  readonly #waiting = new Map<number, (message: Message) => void>();
  readonly #listeners = new Set<(message: Message) => void>();
  #next = 1;

  static start(): Chromium {
    const profile = mkdtempSync(join(tmpdir(), 'weftline-chromium-'));
    const flags = [
      '--headless=new',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-dev-shm-usage',
      '--hide-scrollbars',
      '--disable-background-timer-throttling',
      '--disable-backgrounding-occluded-windows',
      '--disable-renderer-backgrounding',
    ];
    const child = spawn(PROGRAM, [...flags, '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank'], {
      stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'],
    });
    return new Chromium(child, profile);
  }

  private constructor(child: ChildProcess, profile: string) {
    this.#process = child;
    this.#profile = profile;
    let text = '';
    (child.stdio[4] as Readable).setEncoding('utf8').on('data', (chunk: string) => {
      const words = (text + chunk).split('\0');
      text = words.pop()!;
      for (const word of words) this.#take(JSON.parse(word) as Message);
    });
    child.once('exit', () => {
      for (const answer of this.#waiting.values()) answer({ error: { message: 'Chromium has ended' } });
    });
  }

  async page(): Promise<Page> {
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, String(sessionId));
    for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await page.send(`${domain}.enable`);
    await page.send('Page.bringToFront');
    return page;
  }

  async send(
    method: string,
    params: Readonly<Record<string, unknown>> = {},
    sessionId?: string,
  ): Promise<Readonly<Record<string, unknown>>> {
    const id = this.#next++;
    const answer = new Promise<Message>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${method} has no answer`)), DEADLINE_MS);
      this.#waiting.set(id, (message) => {
        clearTimeout(timer);
        resolve(message);
      });
    });
    (this.#process.stdio[3] as Writable).write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    const { result = {}, error } = await answer;
    if (error !== undefined) throw new Error(`${method}: ${error.message}`);
    return result;
  }

  listen(listener: (message: Message) => void): void {
    this.#listeners.add(listener);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = once(this.#process, 'exit');
    this.#process.kill('SIGKILL');
    await ended;
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 5 });
  }

  #take(message: Message): void {
    if (message.id === undefined) {
      for (const listener of this.#listeners) listener(message);
      return;
    }
    this.#waiting.get(message.id)?.(message);
    this.#waiting.delete(message.id);
  }
}

export class Page {
  /** What the console got: errors and warnings, and exceptions that nobody caught. */
  readonly problems: string[] = [];
  /** Everything that was asked for besides the page itself. */
  readonly requests: string[] = [];
  readonly #browser: Chromium;
  readonly #session: string;
  #loaded: (() => void) | undefined;

  constructor(browser: Chromium, session: string) {
    this.#browser = browser;
    this.#session = session;
    browser.listen((message) => {
      if (message.sessionId === session) this.#take(message);
    });
  }

  send(method: string, params?: Readonly<Record<string, unknown>>): Promise<Readonly<Record<string, unknown>>> {
    return this.#browser.send(method, params, this.#session);
  }

  /** Opens a file, and resolves when it is drawn. */
  async open(url: string, view: View): Promise<void> {
    await this.view(view);
    const loaded = new Promise<void>((resolve) => {
      this.#loaded = resolve;
    });
    await this.send('Page.navigate', { url });
    await loaded;
    const isDrawn = "(document.body.hasAttribute('data-drawn') || document.querySelector('[data-chart]') === null)";
    // The event may be that of the page before.
    await this.until(`document.readyState === 'complete' && ${isDrawn}`);
    await this.settle();
  }

  async view({ width, scheme }: View): Promise<void> {
    await this.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
    await this.send('Emulation.setDeviceMetricsOverride', {
      width,
      height: 900,
      deviceScaleFactor: 1,
      mobile: width < 600,
    });
  }

  /** Resolves when an expression of the page is true. */
  async until(expression: string): Promise<void> {
    const looks = `const look = () => (${expression}) ? done(0) : setTimeout(look, 10)`;
    await this.evaluate(`new Promise((done) => { ${looks}; look(); })`);
  }

  /** Two frames later. */
  async settle(): Promise<void> {
    const frames = 'requestAnimationFrame(() => requestAnimationFrame(() => done(true)))';
    for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
      const late = `setTimeout(() => done(false), ${FRAMES_MS})`;
      if (await this.evaluate<boolean>(`new Promise((done) => { ${frames}; ${late}; })`)) return;
      // A picture needs a frame.
      await this.send('Page.bringToFront');
      await this.screenshot();
    }
    throw new Error(`the browser drew no frame in ${ATTEMPTS} times ${FRAMES_MS} ms`);
  }

  async evaluate<T>(expression: string): Promise<T> {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', {
      expression,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails !== undefined) throw new Error(`${expression}: ${JSON.stringify(exceptionDetails)}`);
    return (result as { readonly value: T }).value;
  }

  async press(key: string): Promise<void> {
    const code = { Tab: 9 }[key] ?? 0;
    for (const type of ['rawKeyDown', 'keyUp']) {
      await this.send('Input.dispatchKeyEvent', { type, key, code: key, windowsVirtualKeyCode: code });
    }
  }

  /** The whole page as a PNG. */
  async screenshot(): Promise<Buffer> {
    const { data } = await this.send('Page.captureScreenshot', { captureBeyondViewport: true });
    return Buffer.from(String(data), 'base64');
  }

  #take({ method, params = {} }: Message): void {
    if (method === 'Page.loadEventFired') this.#loaded?.();
    else if (method === 'Runtime.exceptionThrown') this.problems.push(JSON.stringify(params));
    else if (method === 'Runtime.consoleAPICalled' && ['error', 'warning'].includes(String(params['type']))) {
      this.problems.push(JSON.stringify(params['args']));
    } else if (method === 'Log.entryAdded') {
      this.problems.push(JSON.stringify(params['entry']));
    } else if (method === 'Network.requestWillBeSent') {
      this.requests.push((params['request'] as { readonly url: string }).url);
    }
  }
}
