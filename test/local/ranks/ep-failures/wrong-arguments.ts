// Every call with an argument that is wrong by itself: what each of them says.
import { wrongBufferCalls } from './buffer-arguments.ts';
import { failureOf } from './context.ts';
import { wrongLayerCalls } from './layer-arguments.ts';

export async function wrongArguments(): Promise<Record<string, string>> {
  const calls = { ...(await wrongBufferCalls()), ...(await wrongLayerCalls()) };
  const found: Record<string, string> = {};
  for (const [name, call] of Object.entries(calls)) {
    const { code, message } = await failureOf(call);
    found[name] = code === 'not ours' ? message : `${code}: ${message}`;
  }
  return found;
}
