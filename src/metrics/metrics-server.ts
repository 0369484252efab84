// Serves the metrics of this process over HTTP, as Prometheus scrapes them: GET /metrics and nothing else.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { asWeftlineError, WeftlineError } from '../core/errors.ts';

/** Scrapers that may be connected at once. */
const MAX_CONNECTIONS = 16;
/** How long a caller may take to say what it wants. */
const REQUEST_MS = 5_000;

interface Endpoint {
  readonly host: string;
  readonly port: number;
}

interface MetricsPage {
  readonly type: string;
  readonly text: string;
}

/** Does not keep the process alive. Fails with WL_CONFIG if it cannot listen there. Returns the port. */
export async function serveMetrics({ host, port }: Endpoint, page: () => Promise<MetricsPage>): Promise<number> {
  const server = createServer(
    {
      requestTimeout: REQUEST_MS,
      headersTimeout: REQUEST_MS,
      keepAliveTimeout: REQUEST_MS,
      connectionsCheckingInterval: REQUEST_MS,
    },
    (request, response) => void answer(request, response, page),
  );
  server.maxConnections = MAX_CONNECTIONS;
  server.on('connection', (socket) => socket.unref());
  await listening(server, { host, port });
  server.unref();
  const address = server.address();
  return typeof address === 'object' && address !== null ? address.port : port;
}

async function answer(
  { method, url = '/' }: IncomingMessage,
  response: ServerResponse,
  page: () => Promise<MetricsPage>,
): Promise<void> {
  const path = url.split('?')[0];
  if (path !== '/metrics') return end(response, 404, 'Metrics are at /metrics\n');
  if (method !== 'GET' && method !== 'HEAD') return end(response, 405, 'Only GET\n');
  try {
    const { type, text } = await page();
    response.setHeader('content-type', type);
    end(response, 200, method === 'HEAD' ? '' : text);
  } catch (error) {
    end(response, 500, `${asWeftlineError(error).message}\n`);
  }
}

function end(response: ServerResponse, status: number, text: string): void {
  response.statusCode = status;
  response.end(text);
}

/** Remedies by what the system said. */
const remedies: Readonly<Record<string, string>> = {
  EADDRINUSE: 'each process of a host needs a port of its own',
  EADDRNOTAVAIL: 'name an address of this host, or 0.0.0.0 for all of them (WEFTLINE_METRICS)',
  ENOTFOUND: 'name an address of this host, or 0.0.0.0 for all of them (WEFTLINE_METRICS)',
  EAI_AGAIN: 'name an address of this host, or 0.0.0.0 for all of them (WEFTLINE_METRICS)',
  EACCES: 'take a port above 1023 (WEFTLINE_METRICS)',
};

function listening(server: Server, { host, port }: Endpoint): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const remedy = remedies[error.code ?? ''];
      const held = remedy === undefined ? '' : `: ${remedy}`;
      reject(
        new WeftlineError('WL_CONFIG', `Cannot serve metrics on ${host}:${port}: ${error.message}${held}`, {
          details: { setting: 'metrics', host, port },
          cause: error,
        }),
      );
    });
    server.listen({ host, port }, resolve);
  });
}
