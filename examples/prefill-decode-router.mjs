// A router between a prefill and a decode server that speaks vLLM's kv_transfer_params, and toy servers with a KV store
// and a reader. npx weftline run -n 3 prefill-decode-router.mjs
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { Agent, exchangeMetadata, MetadataListener } from 'weftline/agent';
import { KvReader, KvStore } from 'weftline/kv';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 3) throw new Error('start it with: npx weftline run -n 3 prefill-decode-router.mjs');
const [host, blockBytes, count] = ['127.0.0.1', 4096, 64];
const role = ['router', 'prefill', 'decode'][world.rank];

/** What the router sends to the prefill server: one token, and the blocks stay for somebody else. */
const askPrefill = {
  do_remote_decode: true,
  do_remote_prefill: false,
  remote_engine_id: null,
  remote_block_ids: null,
  remote_host: null,
  remote_port: null,
};

async function route(prefill, decode, path, body) {
  const first = { ...body, max_tokens: 1, stream: false, kv_transfer_params: askPrefill };
  const { kv_transfer_params } = await post(prefill + path, first);
  if (!kv_transfer_params?.do_remote_prefill) throw new Error('the prefill server kept no blocks');
  return post(decode + path, { ...body, kv_transfer_params });
}

async function post(url, body) {
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  return JSON.parse(await answer.text());
}

/** In place of an engine: keys and values are the bytes of the prompt, a block for each word. */
async function openEngine(name) {
  const agent = await Agent.create(name, { token: world.secret });
  const cache = await agent.allocate(count * blockBytes, { name: 'kv-cache' });
  const memory = { blocks: count, parts: [{ memory: cache, bytes: blockBytes }] };
  const blockAt = (block) => cache.bytes.subarray(block * blockBytes, (block + 1) * blockBytes);
  return { agent, answer: await (name === 'prefill' ? openPrefill : openDecode)(agent, memory, blockAt) };
}

async function openPrefill(agent, memory, blockAt) {
  const store = await KvStore.create(agent, { name: 'prompts', ...memory });
  const listener = await MetadataListener.open(agent, { host });
  return async ({ prompt }) => {
    const words = prompt.split(' ');
    // A block holds the keys and values of its tokens behind those before them.
    const keys = words.map((_, index) => words.slice(0, index + 1).join(' '));
    const missing = keys.filter((key) => !store.has(key));
    for (const [index, block] of store.reserve(missing).entries())
      blockAt(block)
        .fill(0)
        .set(Buffer.from(missing[index].split(' ').at(-1)));
    await store.seal(missing);
    const ticket = store.ticket(keys, { leaseMs: 5000 });
    const remote = { remote_engine_id: agent.name, remote_block_ids: ticket.blocks };
    const address = { remote_host: host, remote_port: listener.port };
    return {
      choices: [{ text: '' }],
      kv_transfer_params: { do_remote_prefill: true, do_remote_decode: false, ...remote, ...address, ticket },
    };
  };
}

async function openDecode(agent, memory, blockAt) {
  const reader = await KvReader.create(agent, memory);
  return async ({ kv_transfer_params: { remote_host, remote_port, ticket } }) => {
    await exchangeMetadata(agent, { host: remote_host, port: remote_port });
    const lease = reader.open(ticket);
    const results = await lease.read([...ticket.keys.keys()]);
    await lease.release();
    // An engine would compute what is missing.
    const words = results.map((result) => (result.isHit ? String(Buffer.from(blockAt(result.block))) : '?'));
    return {
      choices: [
        {
          text: words
            .map((word) => word.replaceAll('\0', ''))
            .toReversed()
            .join(' '),
        },
      ],
    };
  };
}

async function serve(answer) {
  const server = createServer(async (request, response) => {
    try {
      response.end(
        JSON.stringify(await answer(request.url, JSON.parse(String(Buffer.concat(await request.toArray()))))),
      );
    } catch (error) {
      response.writeHead(500).end(String(error));
    }
  });
  server.listen(0, host);
  await once(server, 'listening');
  /** @type {any} It has a port, which the address of a pipe has not. */
  const address = server.address();
  return { server, url: `http://${host}:${address.port}` };
}

let engine;
let server;
try {
  if (role === 'router') {
    // Or those of vLLM servers that run with a KV connector.
    const [prefill, decode] = await Promise.all(['prefill', 'decode'].map((name) => world.store.getJson(name)));
    const router = await serve((path, body) => route(prefill, decode, path, body));
    ({ server } = router);
    const prompts = ['one two three', 'one two four', 'a b c d e'];
    for (const prompt of prompts) {
      const { choices } = await post(`${router.url}/v1/completions`, { model: 'toy', prompt, max_tokens: 8 });
      console.log(`${prompt} -> ${choices[0].text}`);
      assert.equal(choices[0].text, prompt.split(' ').toReversed().join(' '));
    }
  } else {
    engine = await openEngine(role);
    const served = await serve((_, body) => engine.answer(body));
    ({ server } = served);
    await world.store.setJson(role, served.url);
  }
  await world.barrier('all prompts were answered');
} finally {
  server.closeAllConnections();
  server.close();
  await engine?.agent.close();
  await world.close();
}
