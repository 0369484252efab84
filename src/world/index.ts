// weftline/world: ranks, the rendezvous store, the launcher.
export { readSettings } from '../settings/settings.ts';
