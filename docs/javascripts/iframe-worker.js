// Opened from the disk, a page may not start a worker, which the search is: there its
// script runs in a hidden frame. (The theme would load a file of this name from another
// host; mkdocs.yml names this one in its place.)
if (location.protocol === 'file:') {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement('iframe');
      frame.hidden = true;
      this.ready = new Promise(resolve => {
        frame.onload = () => resolve(frame.contentWindow);
      }).then(async inner => {
        const load = source => new Promise((resolve, reject) => {
          const script = inner.document.createElement('script');
          Object.assign(script, {src: source, onload: resolve, onerror: reject});
          inner.document.head.append(script);
        });
        inner.importScripts = async (...sources) => {
          for (const source of sources) await load(source);
        };
        inner.postMessage = data =>
          this.dispatchEvent(new MessageEvent('message', {data}));
        await load(new URL(url, location));
        return inner;
      });
      document.documentElement.append(frame);
    }

    async postMessage(data) {
      (await this.ready).dispatchEvent(new MessageEvent('message', {data}));
    }
  };
}
